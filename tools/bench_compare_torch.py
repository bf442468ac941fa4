#!/usr/bin/env python3
"""Training in Troupe beside PyTorch, on this machine in this run: the same models, batches and
threads, nothing computed again in the backward pass, random weights and tokens.

    tools/bench compare-torch [--only ROW,…] [--steps 7] [--keep FILE] [--markdown | --readme] [--json]

Rows: eager, compiled (model A in fp32, one rank, one thread), ddp, fsdp, zero3 (two ranks with a thread
each; FSDP is fully_shard, ZeRO-3 DeepSpeed's), bf16 (ours beside autocast), B, gpt2 (eager). A row runs
Troupe for half of the steps, its peer, and Troupe again; a step is the median of all timed ones, behind
3 for warming up.
Memory: the most that a rank's process has had resident.

Fair: PyTorch as its packages come, with a thread a rank, fused AdamW and scaled_dot_product_attention,
without weight decay; losses are read every step. Troupe does more in a step: it takes the gradients'
norm and clips, and keeps what recovery needs. bf16: fp32 weights, moments and sums, bf16 products.

PyTorch, transformers and DeepSpeed come from PyPI (tools/peers/requirements*.txt) into
$TROUPE_PEERS_VENV, or build/peers/venv; one that cannot be had, or does not run, is a failure.
Everything runs in namespaces of its own, with loopback alone. --keep FILE remembers the rows that were
measured, so that parts can be run alone: rows that are not in --only come from there. --markdown prints
the section of the guide's page, --readme puts it there.
"""

import datetime
import json
import os
import subprocess
import sys

from harness import peers, processes, script, training
from harness.figures import Fault, median
from harness.limits import product_limits
from harness.training import WARM_UP
from harness.workplace import ROOT, Workplace, build

# Row: what it is, model, precision, ranks, the peer's mode, our settings, and how many times the
# peer's speed ours must be.
TABLE = {
    "eager": ("A, fp32, 1 rank; eager", "A", "fp32", 1, "eager", {}, 1.35),
    "compiled": ("A, fp32, 1 rank; compiled", "A", "fp32", 1, "compiled", {}, 1.3),
    "ddp": ("A, fp32, 2 ranks, ddp; DDP", "A", "fp32", 2, "ddp", {"troupe.strategy": "ddp"}, 1.45),
    "fsdp": ("A, fp32, 2 ranks, fsdp; FSDP2", "A", "fp32", 2, "fsdp", {"troupe.strategy": "fsdp"}, 1.55),
    "zero3": ("A, fp32, 2 ranks, zero3; DeepSpeed ZeRO-3", "A", "fp32", 2, "zero3", {"troupe.strategy": "zero3"}, 1.55),
    "bf16": ("A, bf16, 1 rank; eager with autocast", "A", "bf16", 1, "eager", {"bf16": "true"}, 1.5),
    "B": ("B, fp32, 1 rank; eager", "B", "fp32", 1, "eager", {}, 1.4),
    "gpt2": ("GPT-2 124 M, fp32, 1 rank; eager", "gpt2", "fp32", 1, "eager", {}, 1.4),
}
# Of the peer's peak memory, for A.
MEMORY_SHARE = 0.35
PEER_TIMEOUT_S = 280
PAGE = "examples/guide/measured.md"
MARKS = ("<!-- tools/bench compare-torch --readme -->", "<!-- end -->")


def peer_command(python, mode, ranks):
    program = os.path.join(peers.FOLDER, "train_torch.py")
    if ranks == 1:
        return [python, program]
    torchrun = os.path.join(os.path.dirname(python), "torchrun")
    return [torchrun, "--standalone", f"--nproc-per-node={ranks}", program]


def run_peer(place, python, row, steps):
    """(seconds of the timed steps, peak MiB of the rank that had most)."""
    text, model, precision, ranks, mode, _, _ = TABLE[row]
    results, log = place.file("peer-" + row), place.file(f"peer-{row}.log")
    command = [*peer_command(python, mode, ranks), mode, training.model(place, model), precision, "1", str(WARM_UP),
               str(steps), results]
    environment = {**place.environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                   "TORCHINDUCTOR_CACHE_DIR": place.file("inductor"), "TORCH_EXTENSIONS_DIR": peers.extensions(python),
                   "PATH": os.path.dirname(python) + ":" + os.environ["PATH"]}
    with open(log, "wb") as output:
        try:
            done = subprocess.run(command, env=environment, cwd=place.path, stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=subprocess.STDOUT, timeout=PEER_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            done = None
    processes.end_all(place.mark)
    if done is None or done.returncode != 0:
        with open(log, encoding="utf-8", errors="replace") as file:
            words = "\n    ".join(file.read().strip().splitlines()[-12:])
        how = f"ended with code {done.returncode}" if done else f"did not end within {PEER_TIMEOUT_S} s"
        raise Fault(f"{text}: the peer {how}:\n    {words}")
    told = []
    for rank in range(ranks):
        with open(f"{results}-{rank}.json", encoding="utf-8") as file:
            told.append(json.load(file))
    return told[0]["seconds"], max(rank["peak_mib"] for rank in told)


def compare(python, bin_folder, row, steps):
    """One row: Troupe, the peer, Troupe."""
    text, model, precision, ranks, _, more, _ = TABLE[row]
    ours, peaks = [], []
    with Workplace() as place:
        chosen = {**training.settings(place, model, (steps + 1) // 2, troupe__workers=ranks), **more}

        def run(name):
            measured = training.measure(place, bin_folder, name, chosen)
            ours.extend(measured.steps_ms)
            peaks.append(measured.peak_mib)

        run("before")
        seconds, their_peak = run_peer(place, python, row, steps)
        run("after")
    return {"ours_ms": median(ours), "theirs_ms": median(seconds) * 1e3, "steps": min(len(ours), len(seconds)),
            "ours_mib": max(peaks), "theirs_mib": their_peak}


def report(figures, row, found):
    text, model, _, ranks, _, _, bar = TABLE[row]
    times = found["theirs_ms"] / found["ours_ms"]
    share = found["ours_mib"] / found["theirs_mib"]
    figures.add(f"{text}: a step of Troupe", found["ours_ms"], "ms")
    figures.add(f"{text}: a step of PyTorch", found["theirs_ms"], "ms")
    figures.add(f"{text}: times its speed", times, "")
    figures.add(f"{text}: Troupe's peak memory, a rank", found["ours_mib"], "MiB")
    figures.add(f"{text}: PyTorch's peak memory, a rank", found["theirs_mib"], "MiB")
    figures.add(f"{text}: Troupe's share of it", share, "")
    figures.bar(f"at least {bar} times the speed ({times:.2f})", times >= bar)
    if model == "A":
        figures.bar(f"at most {MEMORY_SHARE} of the memory ({share:.2f})", share <= MEMORY_SHARE)


# --- the guide's section

def machine():
    """Its processor's model and how many cores may be used."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        said = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in file if ":" in line]))
    cores = len(os.sched_getaffinity(0))
    name = said.get("model name", "a processor without a name")
    # Hypervisors leave out of the name which one it is.
    if "cpu family" in said:
        name += f" (family {said['cpu family']}, model {said['model']})"
    return f"{name}, {cores} core{'s' if cores != 1 else ''}"


def versions(python):
    asked = subprocess.run(
        [python, "-c", "import importlib.metadata as m; print(*(m.version(n) for n in "
                       "('torch', 'transformers', 'deepspeed')))"], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        raise Fault(f"the peers' versions cannot be asked for: {asked.stderr.strip()[-500:]}")
    return "PyTorch {}, transformers {}, DeepSpeed {}".format(*asked.stdout.split())


def number(value):
    return f"{value:,.0f}"


def section(kept):
    rows, limits = kept["rows"], kept["limits"]
    work = sum(training.gigaflops("A").values())
    lines = [
        f"Training beside {kept['versions']}, `tools/bench compare-torch`, a row in one run, on {kept['machine']}, "
        f"{kept['date']}: the same models from random weights, 4 × 256 tokens and a thread a rank, nothing computed again "
        "in the backward pass, fused AdamW; PyTorch and oneDNN as packaged. Medians of "
        f"{min(row['steps'] for row in rows.values())} steps or more; memory resident at the most, of a rank.",
        "",
        "| | Troupe ms | PyTorch ms | times its speed | Troupe MiB | PyTorch MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row, (text, *_) in TABLE.items():
        if row in rows:
            found = rows[row]
            lines.append(f"| {text} | {number(found['ours_ms'])} | {number(found['theirs_ms'])} | "
                         f"{found['theirs_ms'] / found['ours_ms']:.2f} | {number(found['ours_mib'])} | "
                         f"{number(found['theirs_mib'])} |")
    best = limits["fp32 best"]
    text = (f"A is a Llama of 15.2 M parameters (vocabulary 32,000), B one of 71 M. A's products come to {work:.0f} GFLOP "
            f"a step; oneDNN reaches {best:.0f} GFLOP/s at its shapes with one thread (fp32")
    text += f"; bf16 {limits['bf16 best']:.0f})" if "bf16 best" in limits else ")"
    if "eager" in rows:
        text += f", which a step of Troupe reaches {100 * work / best * 1e3 / rows['eager']['ours_ms']:.0f} % of"
    return lines + ["", text + f". memcpy: {limits['memcpy']:.1f} GB/s."]


def fill(lines, limit=105):
    """Breaks the lines that are no table."""
    out = []
    for line in lines:
        while len(line) > limit and not line.startswith("|"):
            at = line.rfind(" ", 0, limit)
            out.append(line[:at])
            line = line[at + 1:]
        out.append(line)
    return "\n".join(out)


def put_into_page(text):
    path = os.path.join(ROOT, PAGE)
    with open(path, encoding="utf-8") as file:
        readme = file.read()
    begin, end = readme.find(MARKS[0]), readme.find(MARKS[1], readme.find(MARKS[0]) + 1)
    if begin < 0 or end < 0:
        raise Fault(f"{PAGE} has no section between '{MARKS[0]}' and '{MARKS[1]}'")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{readme[:begin]}{MARKS[0]}\n{text}\n{readme[end:]}")


# --- the command

def parse(arguments):
    parser = script.parser("tools/bench compare-torch", __doc__)
    parser.add_argument("--only", type=script.some_of(TABLE), default=list(TABLE), help="these rows, with commas between them")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of a run, at least 7 for a report (7)")
    parser.add_argument("--keep", type=os.path.abspath, metavar="FILE", help="rows that were measured before, and now")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="prints the guide's section at the end")
    form.add_argument("--readme", action="store_true", help=f"puts it into {PAGE}")
    return parser.parse_args(arguments)


def measure(figures, options, python, bin_folder):
    kept = {"rows": {}}
    if options.keep and os.path.exists(options.keep):
        with open(options.keep, encoding="utf-8") as file:
            kept = json.load(file)
    now = {"machine": machine(), "versions": versions(python)}
    if kept["rows"] and any(kept[name] != value for name, value in now.items()):
        raise Fault(f"{options.keep} has rows of {kept['machine']}, {kept['versions']}; here are {now['machine']}, "
                    f"{now['versions']}: give another file, or remove it")
    kept.update(now, date=datetime.date.today().isoformat(),
                limits={name: value for name, (value, _) in product_limits(bin_folder, "A").items()})
    figures.note(f"{kept['machine']}; {kept['versions']}")
    figures.add("oneDNN, one thread, fp32: best rate at A's shapes", kept["limits"]["fp32 best"], "GFLOP/s")
    failed = []
    for row in options.only:
        try:
            kept["rows"][row] = compare(python, bin_folder, row, options.steps)
        except Fault as fault:
            print(f"bench: {fault}", file=sys.stderr)
            failed.append(row)
            continue
        if options.keep:
            with open(options.keep, "w", encoding="utf-8") as file:
                json.dump(kept, file)
        report(figures, row, kept["rows"][row])
    if failed:
        raise Fault(f"not measured: {', '.join(failed)}")
    return kept


def main():
    inside, arguments = peers.arguments()
    options = parse(arguments)

    def measured(figures):
        python = peers.python(figures, "requirements-training.txt")
        bin_folder = build("troupe", "bench_products")
        if not inside:
            if "zero3" in options.only:
                peers.compile_deepspeed(figures, python)
            peers.into_namespaces(__file__, arguments)
        peers.loopback_up()
        kept = measure(figures, options, python, bin_folder)
        if options.markdown or options.readme:
            text = fill(section(kept))
            figures.note(text)
            if options.readme:
                put_into_page(text)

    return script.run("compare-torch", options, measured)


if __name__ == "__main__":
    sys.exit(main())
