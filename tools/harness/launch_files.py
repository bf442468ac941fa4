"""What becomes of accelerate's launch files and of DeepSpeed's JSON files: each starts a training that does what it says,
or is refused by a key."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

from harness import stand_ins
from harness.figures import BAR_MET, BAR_NOT_MET

LIMIT_S = 120
STEPS = 2
WORKS, REFUSED, FAILED = "works", "refused", "failed"
AT_LEAST = {"accelerate": 11, "deepspeed": 16}
RUN_FILE = """stage: sft
do_train: true
finetuning_type: full
template: default
cutoff_len: 64
dataset: alpaca
"""


def _number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def settings_beside(path):
    """key=value arguments of a run whose author means what this DeepSpeed file says, too."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return [], 1
    section = lambda name: config.get(name) if isinstance(config.get(name), dict) else {}
    found = {}
    if section("bf16").get("enabled") is True:
        found["bf16"] = "true"
    for key, ours in (("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
                      ("gradient_accumulation_steps", "gradient_accumulation_steps"),
                      ("gradient_clipping", "max_grad_norm")):
        if _number(config.get(key)):
            found[ours] = config[key]
    optimizer = section("optimizer").get("params", {})
    for key, ours in (("lr", "learning_rate"), ("weight_decay", "weight_decay"), ("eps", "adam_epsilon")):
        if _number(optimizer.get(key)):
            found[ours] = optimizer[key]
    if isinstance(optimizer.get("betas"), list):
        found["adam_beta1"], found["adam_beta2"] = optimizer["betas"]
    scheduler = section("scheduler")
    if scheduler.get("type") == "WarmupLR":
        found["lr_scheduler_type"] = "constant_with_warmup"
    if _number(scheduler.get("params", {}).get("warmup_num_steps")):
        found["warmup_steps"] = scheduler["params"]["warmup_num_steps"]
    trainers = 2
    total = config.get("train_batch_size")
    if _number(total):
        micro = found.setdefault("per_device_train_batch_size", 1)
        steps = found.get("gradient_accumulation_steps")
        if steps is None:
            found["gradient_accumulation_steps"] = max(1, total // (micro * trainers))
        else:
            trainers = max(1, total // (micro * steps))
    return [f"{key}={value}" for key, value in found.items()], trainers


def key_of(sentence):
    """The key that a refusal names."""
    for form in (r"unknown keys \(\['(\w+)'", r"unknown key '([\w.]+)'", r"the key '(\w+)' stands twice",
                 r"\b([a-z_][\w.]*)(?:=\S+)? is not supported", r"([a-z_][\w.]*): .*is not supported",
                 r"- ds ([\w.]+)=", r"^([a-z_]\w*(?:\.[\w.]+)?)[:=]"):
        match = re.search(form, sentence)
        if match:
            return re.sub(r"^troupe\.accelerate_config\.", "", match.group(1))
    return ""


class Judge:
    def __init__(self, program, work):
        self.program, self.work = program, work
        self.run_file = work / "run.yaml"
        stand_ins.write_model(work / "model", "llama")
        stand_ins.write_data(work / "data", ["alpaca"])
        self.run_file.write_text(f"{RUN_FILE}model_name_or_path: {work}/model\ndataset_dir: {work}/data\n")

    def troupe(self, place, *arguments):
        environment = {**os.environ, "HOME": str(self.work)}
        try:
            return subprocess.run([self.program, *arguments], cwd=place, env=environment, text=True, capture_output=True,
                                  stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(late.cmd, 124, "", f"no end within {LIMIT_S} s")

    def judge(self, command, settings, runs):
        """(verdict, key, sentence). `runs`: its machines are this one, so it is trained, too."""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            place = pathlib.Path(folder)
            arguments = [*command, *settings, f"output_dir={place}/out", f"max_steps={STEPS}", "save_strategy=no"]
            done = self.troupe(place, *arguments, "--explain")
            if done.returncode == 0 and runs:
                done = self.troupe(place, *arguments)
            if done.returncode == 0:
                lines = (place / "out/steps.jsonl").read_text().splitlines() if runs else []
                return (WORKS, "", "") if not runs or len(lines) == STEPS else (FAILED, "", f"{len(lines)} steps")
        lines = [re.sub(r"^troupe [a-z]+: |^(?:command line|flag): | \(key=[\w.]+\)$", "", line)
                 for line in done.stderr.splitlines() if line.strip() and not line.startswith(("troupe: ", "\t"))]
        lines = [re.sub(r"^(?:command line|flag): ", "", line) for line in lines
                 if not line.startswith(("warning: ", "notice: "))]
        if done.returncode < 0 or done.returncode == 124 or not lines:
            return FAILED, "", lines[-1] if lines else f"exit code {done.returncode}"
        key = next((key for key in map(key_of, lines) if key), "")
        return (REFUSED if key else FAILED), key, lines[0]

    def accelerate(self, path):
        text = path.read_text(encoding="utf-8")
        value = lambda key: next(iter(re.findall(rf"^\s*{key}:\s*['\"]?([^'\"#\n]+)", text, re.M)), "").strip()
        flags = [] if value("num_processes") or value("distributed_type") == "NO" else ["--num_processes", "2"]
        named = value("deepspeed_config_file")
        settings = settings_beside(path.parent / named)[0] if named and (path.parent / named).exists() else []
        if value("mixed_precision") == "bf16":
            settings.append("bf16=true")
        command = ["run", "--", "accelerate", "launch", *flags, "--config_file", str(path), "src/train.py",
                   str(self.run_file)]
        verdict, key, sentence = self.judge(command, settings, runs=(value("num_machines") or "1") == "1")
        notes = [f"with {' '.join(flags)}"] if flags else []
        if verdict == WORKS and (value("num_machines") or "1") != "1":
            notes.append("read only: its other machines are not here")
        return verdict, key, sentence or ", ".join(notes)

    def deepspeed(self, path):
        settings, trainers = settings_beside(path)
        return self.judge(["train", str(self.run_file), f"deepspeed={path}", f"troupe.workers={min(trainers, 8)}"],
                          settings, runs=trainers <= 8)


def check(kind, folders, program, as_json=False):
    """Judges the files of `kind` in the folders; the exit code."""
    ends = (".yaml", ".yml") if kind == "accelerate" else (".json",)
    rows = []
    with tempfile.TemporaryDirectory(prefix="troupe-check-configs-") as work:
        judge = Judge(program, pathlib.Path(work))
        for folder in map(pathlib.Path, folders):
            for path in sorted(path.resolve() for path in folder.rglob("*") if path.suffix in ends):
                verdict, key, sentence = getattr(judge, kind)(path)
                rows.append({"file": str(path.relative_to(folder.resolve())), "verdict": verdict, "key": key,
                             "sentence": sentence})
                if not as_json:
                    said = f"{verdict} by {key}: {sentence}" if key else f"{verdict}{': ' + sentence if sentence else ''}"
                    print(f"{rows[-1]['file']:<70} {said}", flush=True)
    totals = {word: sum(row["verdict"] == word for row in rows) for word in (WORKS, REFUSED, FAILED)}
    met = totals[FAILED] == 0 and totals[WORKS] >= AT_LEAST[kind]
    if as_json:
        print(json.dumps({"what": f"check-configs --{kind}", "files": rows, "totals": totals, "met": met}))
    else:
        print(f"{len(rows)} files: {totals[WORKS]} work, {totals[REFUSED]} are refused by a key, {totals[FAILED]} failed "
              f"(bar: {AT_LEAST[kind]} work, none fails)")
    return BAR_MET if met else BAR_NOT_MET
