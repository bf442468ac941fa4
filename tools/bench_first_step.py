#!/usr/bin/env python3
"""From the command to the first step begun, of model A (a Llama of 15 million parameters with a vocabulary of 32,000)
and some megabytes of text: a part of `tools/bench startup`.

Moments are those at which lines came: of the output, of events.jsonl, of steps.jsonl. The first step begins where its
line came less the seconds that it says it took.
"""

import json
import os
import shutil
import subprocess
import sys

from harness import script
from harness.figures import Fault, median
from harness.run import Run
from harness.texts import documents, english_like
from harness.workplace import Workplace, build

BAR_S = 0.5
RUN_S = 60
TEXT_BYTES = 3_000_000


def prepare(place, bin_folder):
    """Model A's folder with a tokenizer of its own, and a data set."""
    model, data = place.model("15m"), place.file("data")
    texts = documents(english_like(TEXT_BYTES))
    os.makedirs(data)
    with open(os.path.join(data, "t.jsonl"), "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    with open(os.path.join(data, "dataset_info.json"), "w", encoding="utf-8") as file:
        json.dump({"t": {"file_name": "t.jsonl", "columns": {"prompt": "text"}}}, file)
    all_text = place.file("text.txt")
    with open(all_text, "w", encoding="utf-8") as file:
        file.write("\n".join(texts))
    done = subprocess.run([f"{bin_folder}/troupe", "tokenizer", "train", "--text", all_text, "--out", place.file("learned"),
                           "--vocab-size", "32000"], capture_output=True, text=True, env=place.environment(), check=False)
    if done.returncode != 0:
        raise Fault(f"no tokenizer could be learned: {done.stderr.strip()}")
    for name in os.listdir(place.file("learned")):
        shutil.copy(place.file("learned", name), model)
    return model, data


def settings(model, data, workers, **more):
    return {"stage": "pt", "finetuning_type": "full", "model_name_or_path": model, "dataset": "t", "dataset_dir": data,
            "cutoff_len": 256, "per_device_train_batch_size": 4, "max_steps": 1, "logging_steps": 1,
            "save_strategy": "no", "disable_gradient_checkpointing": "true", "troupe.workers": workers,
            "troupe.threads_per_worker": 1, **more}


def said(run, part):
    return next((at for line, at in run.said_at if part in line), None)


def moments(run):
    """What happened when, in seconds since the command."""
    with open(os.path.join(run.folder, "steps.jsonl"), encoding="utf-8") as file:
        took = sum(json.loads(file.readline())["seconds"].values())
    events = [at for event, at in run.event_at if event["event"] == "start"]
    at = {"data ready": said(run, " rows became "), "cluster ready": said(run, " trainer"), "run started": min(events),
          "first step begun": run.step_at[1] - took, "first step done": run.step_at[1]}
    if None in at.values():
        raise Fault(f"run {run.name}: a moment is missing: {at}")
    return {name: moment - run.started_at for name, moment in at.items()}


def measure(figures, place, bin_folder, options):
    model, data = prepare(place, bin_folder)
    trained = Run(place, bin_folder, "weights", settings(model, data, 1, train_from_scratch="true")).start().finish(RUN_S)
    cases = [("random weights", model, {"train_from_scratch": "true"}), ("weights from a file", trained.folder, {})]
    for what, folder, more in cases:
        for workers in (1, 2):
            seen = [moments(Run(place, bin_folder, f"{workers}-{len(more)}-{i}",
                                settings(folder, data, workers, **more)).start().finish(RUN_S))
                    for i in range(options.repeats)]
            name = f"A, {what}, {workers} trainer{'s' if workers > 1 else ''}"
            for moment in seen[0]:
                figures.add(f"{name}: {moment}", median([one[moment] for one in seen]) * 1e3, "ms")
            begun = median([one["first step begun"] for one in seen])
            figures.bar(f"{name}: first step begun within {BAR_S} s", begun < BAR_S)


def main():
    parser = script.parser("tools/bench_first_step.py", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each kind (5)")
    options = parser.parse_args()

    def both(figures):
        bin_folder = build("troupe")
        with Workplace() as place:
            measure(figures, place, bin_folder, options)

    return script.run("first-step", options, both)


if __name__ == "__main__":
    sys.exit(main())
