#!/usr/bin/env python3
"""DPO in Troupe beside TRL's DPOTrainer, on this machine in this run: the same weights and pairs, one thread,
4 pairs of 128 random tokens each (64 of the question), the whole model trained beside a frozen copy,
nothing computed again in the backward pass.

    tools/bench compare-trl [--only ROW,…] [--precomputed] [--steps 7] [--json]

Rows: gpt2 (GPT-2 124 M), A (a Llama of 15 M). fp32, β 0.1, sigmoid loss. A row runs Troupe for half of the
steps, TRL, and Troupe again; a step is the median of all timed ones, behind 3 for warming up. Memory: the most
that the process has had resident. The first step's loss must be ln 2 on both sides. --precomputed: both sides ask
the reference before they train (troupe.precompute_ref_log_probs, TRL's precompute_ref_log_probs).

Fair: PyTorch as its packages come, with fused AdamW and scaled_dot_product_attention. Troupe does more in a step: it
keeps what recovery needs.

TRL and what it needs come from PyPI (tools/peers/requirements-trl.txt) into build/peers/trl. Everything runs in
namespaces of its own, with loopback alone.
"""

import json
import math
import os
import random
import sys

from bench_compare_peft import run_peer
from harness import peers, script, training
from harness.figures import Fault, median
from harness.workplace import Workplace, build

ROWS_OF_MODELS = ("gpt2", "A")
PAIRS, QUESTION, ANSWER = 4, 64, 64
SPEED_BAR, MEMORY_BAR = 2.5, 0.4
RATE = "1e-5"
PROGRAM = "train_trl.py"


def pairs_of(place, name, count=64):
    """A folder with the data set `pairs`: a question and two answers of random characters, each a token."""
    folder = place.file("pairs")
    os.makedirs(folder, exist_ok=True)
    draw = random.Random(11)
    characters = training.characters_of(training.MODELS[name]["vocab_size"] - 1)

    def text(length):
        return "".join(draw.choices(characters, k=length))

    path = os.path.join(folder, "pairs.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            # The end of an answer is a token.
            row = {"prompt": text(QUESTION), "chosen": text(ANSWER - 1), "rejected": text(ANSWER - 1)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    with open(os.path.join(folder, "dataset_info.json"), "w", encoding="utf-8") as file:
        json.dump({"pairs": {"file_name": "pairs.jsonl", "ranking": True, "columns": {
            "prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}}}, file)
    return folder, path


def compare(figures, python, bin_folder, row, steps, precomputed):
    name = training.NAMES[row] + (", reference asked before" if precomputed else "")
    with Workplace() as place:
        folder = training.model(place, row)
        run_peer(place, python, ["make", folder], PROGRAM)
        data, path = pairs_of(place, row)
        chosen = training.settings(place, row, (steps + 1) // 2)
        del chosen["train_from_scratch"]
        chosen.update({"stage": "dpo", "dataset": "pairs", "dataset_dir": data, "template": "empty",
                       "cutoff_len": QUESTION + ANSWER, "per_device_train_batch_size": PAIRS, "pref_beta": 0.1,
                       "learning_rate": RATE})
        if precomputed:
            chosen["troupe.precompute_ref_log_probs"] = "true"
        before = training.measure(place, bin_folder, "before", chosen, timeout_s=300)
        results = place.file("trl.json")
        run_peer(place, python, ["run", folder, path, str(PAIRS), RATE, str(training.WARM_UP), str(steps), results,
                                 "before" if precomputed else "beside"], PROGRAM)
        after = training.measure(place, bin_folder, "after", chosen, timeout_s=300)
        with open(results, encoding="utf-8") as file:
            theirs = json.load(file)
    for whose, loss in (("Troupe", before.losses[0]), ("TRL", theirs["losses"][0])):
        if abs(loss - math.log(2)) > 1e-3:
            raise Fault(f"{whose}'s first loss is {loss}, where policy and reference are the same model")
    ours_ms, theirs_ms = median(before.steps_ms + after.steps_ms), median(theirs["seconds"]) * 1e3
    peak = max(before.peak_mib, after.peak_mib)
    tokens = 2 * PAIRS * (QUESTION + ANSWER)
    figures.add(f"{name}: DPO in Troupe, a step", ours_ms, "ms")
    figures.add(f"{name}: DPO in Troupe", tokens / ours_ms * 1e3, "tokens/s")
    figures.add(f"{name}: DPO in TRL, a step", theirs_ms, "ms")
    figures.add(f"{name}: DPO in TRL", tokens / theirs_ms * 1e3, "tokens/s")
    figures.add(f"{name}: times TRL's speed", theirs_ms / ours_ms, "")
    figures.add(f"{name}: DPO in Troupe, peak memory", peak, "MiB")
    figures.add(f"{name}: DPO in TRL, peak memory", theirs["peak_mib"], "MiB")
    figures.add(f"{name}: Troupe's share of it", peak / theirs["peak_mib"], "")
    figures.bar(f"at least {SPEED_BAR} times TRL's speed ({theirs_ms / ours_ms:.2f})", theirs_ms / ours_ms >= SPEED_BAR)
    figures.bar(f"at most {MEMORY_BAR} of TRL's memory ({peak / theirs['peak_mib']:.2f})",
                peak / theirs["peak_mib"] <= MEMORY_BAR)


def parse(arguments):
    parser = script.parser("tools/bench compare-trl", __doc__)
    parser.add_argument("--only", type=script.some_of(ROWS_OF_MODELS), default=["gpt2"],
                        help="these rows, with commas between them (gpt2)")
    parser.add_argument("--precomputed", action="store_true", help="the reference is asked before training, on both sides")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of a run, at least 7 for a report (7)")
    return parser.parse_args(arguments)


def main():
    inside, arguments = peers.arguments()
    options = parse(arguments)

    def measured(figures):
        python = peers.own_python(figures, "trl", "requirements-trl.txt", "torch, transformers, trl")
        bin_folder = build("troupe")
        if not inside:
            peers.into_namespaces(__file__, arguments)
        peers.loopback_up()
        for row in options.only:
            compare(figures, python, bin_folder, row, options.steps, options.precomputed)

    return script.run("compare-trl", options, measured)


if __name__ == "__main__":
    sys.exit(main())
