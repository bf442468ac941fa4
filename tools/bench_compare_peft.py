#!/usr/bin/env python3
"""LoRA in Troupe beside PEFT over transformers, and beside full training in Troupe, on this machine in
this run: the same base weights and adapters, one thread, 4 x 256 random tokens, nothing computed again
in the backward pass.

    tools/bench compare-peft [--only ROW,…] [--steps 7] [--json]

Rows: gpt2 (GPT-2 124 M; c_attn, c_proj, c_fc), llama135 (a Llama of SmolLM-135M's shape; all linear
layers), llama135-nf4 (the same over a base in 4 bits, with double quantisation, in PEFT by bitsandbytes; beside
Troupe's LoRA over the whole base), llama135-nf4-bf16 (that in bf16, the whole base, too), qwen494-nf4-bf16 (of
Qwen2.5-0.5B's shape, 1 x 256 tokens). Rank 8, no dropout, fp32. A row runs Troupe's LoRA for half of the steps, PEFT, Troupe's LoRA
again, and Troupe's full training; a step is the median of all timed ones, behind 3 for warming up.
Memory: the most that the process has had resident.

Fair: PyTorch as its packages come, with fused AdamW and scaled_dot_product_attention, without weight
decay. Troupe does more in a step: it takes the gradients' norm and clips, and keeps what recovery needs.

PyTorch, transformers and PEFT come from PyPI (tools/peers/requirements-adapters.txt) into
build/peers/adapters. Everything runs in namespaces of its own, with loopback alone.
"""

import json
import os
import subprocess
import sys

from harness import peers, processes, script, training
from harness.figures import Fault, median
from harness.workplace import Workplace, build

# Row: what the adapters are at.
ALL_LINEAR = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
TARGETS = {"gpt2": "c_attn,c_proj,c_fc", "llama135": ALL_LINEAR, "llama135-nf4": ALL_LINEAR,
           "llama135-nf4-bf16": ALL_LINEAR, "qwen494-nf4-bf16": ALL_LINEAR}
RANK = 8
QUANTIZED_SPEED_BAR, QUANTIZED_STEP_BAR = 3.0, 1.2
SPEED_BAR, MEMORY_BAR, STEP_BAR, STATE_BAR = 2.5, 0.4, 0.80, 0.02
PEER_TIMEOUT_S = 400


def run_peer(place, python, arguments, program="train_peft.py"):
    log = place.file("peer.log")
    environment = {**place.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with open(log, "wb") as output:
        try:
            done = subprocess.run([python, os.path.join(peers.FOLDER, program), *arguments], env=environment,
                                  cwd=place.path, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                  timeout=PEER_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            done = None
    processes.end_all(place.mark)
    if done is None or done.returncode != 0:
        with open(log, encoding="utf-8", errors="replace") as file:
            words = "\n    ".join(file.read().strip().splitlines()[-12:])
        how = f"ended with code {done.returncode}" if done else f"did not end within {PEER_TIMEOUT_S} s"
        raise Fault(f"{program} {how}:\n    {words}")


def rows_of(row):
    """Of a micro-batch."""
    return 1 if row.startswith("qwen494") else training.ROWS


def begin(place, python, row, steps):
    """The folder of a row's model, whose weights both sides begin from; Troupe's settings of full training and of LoRA."""
    model = row.split("-")[0]
    folder = training.model(place, model)
    run_peer(place, python, ["make", folder])
    plain = training.settings(place, model, (steps + 1) // 2, per_device_train_batch_size=rows_of(row))
    del plain["train_from_scratch"]
    return folder, plain, {**plain, "finetuning_type": "lora", "lora_rank": RANK, "lora_target": TARGETS[row]}


def time_peer(place, python, folder, row, steps):
    """What train_peft.py writes of its run."""
    results = place.file("peft.json")
    run_peer(place, python, ["run", folder, TARGETS[row], str(RANK), str(rows_of(row)), str(training.WARM_UP), str(steps),
                             results, *row.split("-")[1:]])
    with open(results, encoding="utf-8") as file:
        return json.load(file)


def compare(figures, python, bin_folder, row, steps):
    name = training.NAMES[row]
    with Workplace() as place:
        folder, plain, adapters = begin(place, python, row, steps)
        ours, peaks = [], []

        def run_ours(run_name, chosen):
            measured = training.measure(place, bin_folder, run_name, chosen, timeout_s=300)
            return measured.steps_ms, measured.peak_mib

        def run_adapters(run_name):
            steps_ms, peak = run_ours(run_name, adapters)
            ours.extend(steps_ms)
            peaks.append(peak)

        run_adapters("before")
        theirs = time_peer(place, python, folder, row, steps)
        run_adapters("after")
        full_ms, full_peak = run_ours("full", plain)
    ours_ms, theirs_ms = median(ours), median(theirs["seconds"]) * 1e3
    tokens = training.ROWS * training.LENGTH
    figures.add(f"{name}: LoRA in Troupe, a step", ours_ms, "ms")
    figures.add(f"{name}: LoRA in Troupe", tokens / ours_ms * 1e3, "tokens/s")
    figures.add(f"{name}: LoRA in PEFT, a step", theirs_ms, "ms")
    figures.add(f"{name}: LoRA in PEFT", tokens / theirs_ms * 1e3, "tokens/s")
    figures.add(f"{name}: times PEFT's speed", theirs_ms / ours_ms, "")
    figures.add(f"{name}: LoRA in Troupe, peak memory", max(peaks), "MiB")
    figures.add(f"{name}: LoRA in PEFT, peak memory", theirs["peak_mib"], "MiB")
    figures.add(f"{name}: Troupe's share of it", max(peaks) / theirs["peak_mib"], "")
    figures.add(f"{name}: full training in Troupe, a step", median(full_ms), "ms")
    figures.add(f"{name}: full training in Troupe, peak memory", full_peak, "MiB")
    figures.add(f"{name}: LoRA's step of a full step", ours_ms / median(full_ms), "")
    share = theirs["trained"] / theirs["parameters"]
    figures.add(f"{name}: trained of all parameters", 100 * share, "%")
    figures.bar(f"at least {SPEED_BAR} times PEFT's speed ({theirs_ms / ours_ms:.2f})",
                theirs_ms / ours_ms >= SPEED_BAR)
    memory = max(peaks) / theirs["peak_mib"]
    figures.bar(f"at most {MEMORY_BAR} of PEFT's memory ({memory:.2f})", memory <= MEMORY_BAR)
    figures.bar(f"a step at most {STEP_BAR} of a full one ({ours_ms / median(full_ms):.2f})",
                ours_ms / median(full_ms) <= STEP_BAR)
    figures.bar(f"at most {100 * STATE_BAR:.0f} % trained ({100 * share:.2f})", share <= STATE_BAR)


def compare_quantized(figures, python, bin_folder, row, steps):
    bf16 = row.endswith("-bf16")
    name = training.NAMES[row.split("-")[0]] + ", base in nf4" + (", bf16" if bf16 else "")
    with Workplace() as place:
        folder, _, adapters = begin(place, python, row, steps)
        if bf16:
            adapters["bf16"] = "true"
        measured = {"LoRA": [], "QLoRA": []}
        peaks = {}
        for turn in ("before", "after"):
            for kind, chosen in (("LoRA", adapters), ("QLoRA", {**adapters, "quantization_bit": 4})):
                one = training.measure(place, bin_folder, f"{kind}-{turn}", chosen, timeout_s=300)
                measured[kind].extend(one.steps_ms)
                peaks[kind] = max(one.peak_mib, peaks.get(kind, 0))
            if turn == "before":
                theirs = time_peer(place, python, folder, row, steps)
    ours_ms, whole_ms, theirs_ms = median(measured["QLoRA"]), median(measured["LoRA"]), median(theirs["seconds"]) * 1e3
    figures.add(f"{name}: QLoRA in Troupe, a step", ours_ms, "ms")
    figures.add(f"{name}: LoRA over the whole base in Troupe, a step", whole_ms, "ms")
    figures.add(f"{name}: QLoRA in PEFT with bitsandbytes, a step", theirs_ms, "ms")
    figures.add(f"{name}: QLoRA in Troupe, peak memory", peaks["QLoRA"], "MiB")
    figures.add(f"{name}: LoRA in Troupe, peak memory", peaks["LoRA"], "MiB")
    figures.add(f"{name}: QLoRA in PEFT, peak memory", theirs["peak_mib"], "MiB")
    figures.bar(f"a step at most {QUANTIZED_STEP_BAR} of LoRA's ({ours_ms / whole_ms:.2f})",
                ours_ms / whole_ms <= QUANTIZED_STEP_BAR)
    figures.bar(f"at least {QUANTIZED_SPEED_BAR} times PEFT's speed ({theirs_ms / ours_ms:.2f})",
                theirs_ms / ours_ms >= QUANTIZED_SPEED_BAR)


def parse(arguments):
    parser = script.parser("tools/bench compare-peft", __doc__)
    parser.add_argument("--only", type=script.some_of(TARGETS), default=list(TARGETS), help="these rows, with commas between them")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of a run, at least 7 for a report (7)")
    return parser.parse_args(arguments)


def main():
    inside, arguments = peers.arguments()
    options = parse(arguments)

    def measured(figures):
        python = peers.own_python(figures, "adapters", "requirements-adapters.txt", "peft, torch, transformers")
        bin_folder = build("troupe")
        if not inside:
            peers.into_namespaces(__file__, arguments)
        peers.loopback_up()
        for row in options.only:
            run = compare_quantized if "-nf4" in row else compare
            run(figures, python, bin_folder, row, options.steps)

    return script.run("compare-peft", options, measured)


if __name__ == "__main__":
    sys.exit(main())
