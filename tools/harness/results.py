"""Whether two runs are equal: the model to the last bit, and every step's loss and norm."""

import hashlib
import json
import os

# What equal runs need not have in common (train/report/step_log.h).
_TIMINGS = {"seconds", "tokens_per_s", "gflops", "gemm_share", "bytes_sent", "operators"}


def model_hash(folder):
    """Of the finished model, or of the adapter that was trained instead."""
    digest = hashlib.sha256()
    paths = [os.path.join(folder, name) for name in ("model.safetensors", "adapter_model.safetensors")]
    with open(next(path for path in paths if os.path.exists(path) or path == paths[-1]), "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def steps(folder):
    """The lines of steps.jsonl without times, as they stand."""
    with open(os.path.join(folder, "steps.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [{key: value for key, value in line.items() if key not in _TIMINGS} for line in lines]


def step_seconds(folder):
    """Step -> what it took by itself on rank 0, as steps.jsonl has it."""
    with open(os.path.join(folder, "steps.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["step"]: sum(line["seconds"].values()) for line in lines if "seconds" in line}


def samples_once(lines, count):
    """Whether these lines of steps.jsonl, of a whole run, went through each epoch's order of `count` samples from its begin to its end, none
    left out and none twice; else where not, in words."""
    epoch, done = 0, 0
    for line in lines:
        # The last step of an epoch ends where the next one begins; it has no more samples than others.
        if line["epoch"] == epoch + 1 and line["next_sample"] == 0:
            if not 0 < count - done <= lines[0]["next_sample"]:
                return f"epoch {epoch} ends with step {line['step']}, which begins behind {done} of {count} samples"
            epoch, done = epoch + 1, 0
            continue
        if line["epoch"] != epoch or not done < line["next_sample"] <= count:
            return f"step {line['step']} ends at sample {line['next_sample']} of epoch {line['epoch']}, " \
                   f"and begins at sample {done} of epoch {epoch}"
        done = line["next_sample"]
    return ""


def differences(folder, other):
    """What differs between the runs that wrote to the folders, in words; empty: nothing."""
    found = []
    mine, theirs = steps(folder), steps(other)
    numbers = [line["step"] for line in mine]
    if numbers != list(range(1, len(numbers) + 1)):
        wrong = next(i for i, step in enumerate(numbers, 1) if step != i)
        found.append(f"line {wrong} of steps.jsonl is of step {numbers[wrong - 1]}")
    if len(mine) != len(theirs):
        found.append(f"{len(mine)} steps instead of {len(theirs)}")
    for line, expected in zip(mine, theirs):
        if line != expected:
            found.append(f"step {expected['step']}: {line} instead of {expected}")
            break
    if model_hash(folder) != model_hash(other):
        found.append("model.safetensors differs")
    return found


def events(folder, kind=None):
    """The lines of events.jsonl; none where nothing happened."""
    path = os.path.join(folder, "events.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.endswith("\n")]
    return [line for line in lines if kind is None or line["event"] == kind]


# The event that names a rank which is stopped or stuck.
NAMED_EVENT = "hang"


def recomputed_steps(event):
    """Of a `recovered` event: finished or half-finished steps that were computed again."""
    return event["recomputed_steps"]
