#!/usr/bin/env python3
"""Training on this machine's processors, each figure beside what the machine can do at best.

    tools/bench train [--only PART,…] [--steps 7] [--repeats 5] [--set KEY=VALUE] [--json]

Parts: a (model A in fp32, one thread: the step, its memory, oneDNN's products alone), operators (what
the step is made of), attention (fp32, by the size of a head), bf16, models (B, GPT-2 124 M), masked
(instruction rows with 80 % of the tokens masked), ranks (two threads, two ranks under ddp, fsdp,
zero3), start (command to the first step begun), wire (bytes between two simulated nodes under ddp,
zero1, zero2, zero3 and hsdp; root, iproute2).

Model A is a Llama of 15.19 M parameters (288/768, 6 layers, 6 heads, vocabulary 32,000, tied), B one
of 71 M (576/1,536, 12 layers, 9 heads on 3, 49,152, tied); weights and texts are random. 4 × 256
tokens a rank, nothing computed again in the backward pass. A step: the median time between the lines
of consecutive steps, after 3 for warming up. --set changes the runs' settings, to try things out.
"""

import argparse
import subprocess
import sys

from harness import script, training
from harness.figures import median
from harness.limits import better, product_limits
from harness.run import Run
from harness.training import LENGTH, NAMES, ROWS, WARM_UP
from harness.two_nodes import TwoNodes, planned
from harness.workplace import Workplace, build

PARTS = ("a", "operators", "attention", "bf16", "models", "masked", "ranks", "start", "wire")

# A step of A: at most its arithmetic at the best rate of oneDNN's products, divided by this.
SHARE_OF_PRODUCTS = 0.85
BF16_TIMES = 1.6
MASKED_TIMES = 1.5
HEAD_DIM_TIMES = 1.3
START_MS = 500
# What frames, acknowledgements and heartbeats add to the bytes of the formula, at most.
WIRE_PERCENT = 3.0

# What an operator counts as: the first row whose words one of the name's begins with.
GROUPS = [
    ("gradients' buffers and reduction", ("gradient", "head gradient", "communication")),
    ("classifier, its loss and gradients", ("head ",)),
    ("products of the blocks", ("gemm",)),
    ("attention", ("attention",)),
    ("norms", ("rms_norm", "layer_norm", "head_norm", "residual")),
    ("rotation, activation, sums, copies", ("rope", "swiglu", "gelu", "add", "copy", "zero", "embedding", "bias",
                                            "upload", "download")),
    ("AdamW, norm of the gradients", ("optimizer", "norm", "publish")),
    ("the rest that has a name", ("",)),
]


class Bench:
    def __init__(self, figures, options, bin_folder):
        self.figures = figures
        self.options = options
        self.bin = bin_folder
        self.count = 0
        self.fp32 = None  # of A

    def run(self, model="A", place=None, steps=None, **more):
        """One run in a workplace of its own, unless one is given."""
        self.count += 1
        steps = self.options.steps if steps is None else steps

        def measure(place):
            chosen = training.settings(place, model, steps, **more)
            chosen.update(self.options.set)
            return training.measure(place, self.bin, f"run-{self.count}", chosen)

        if place is not None:
            return measure(place)
        with Workplace() as own:
            return measure(own)

    def a_in_fp32(self):
        """Run once, whoever needs it."""
        if self.fp32 is None:
            self.fp32 = self.run()
        return self.fp32

    # --- parts

    def a(self):
        before = product_limits(self.bin, "A")
        run = self.a_in_fp32()
        best = better(before, product_limits(self.bin, "A"))
        work = sum(training.gigaflops("A").values())
        self.figures.add("memcpy of 64 MiB", *best["memcpy"])
        for type in ("fp32", "bf16"):
            if type + " best" in best:
                self.figures.add(f"oneDNN, one thread, {type}: best rate at A's shapes", *best[type + " best"])
                self.figures.add(f"the same: the step's products with weights alone", *best[type + " products of a step"])
        if self.options.products:
            for name, (value, unit) in best.items():
                self.figures.note(f"    {name:<40}{value:>10.1f} {unit}")
        limit = work / best["fp32 best"][0] * 1e3
        self.figures.add("A: products of a step", work, "GFLOP")
        self.figures.add("A: these at the best rate", limit, "ms")
        self.figures.add("A, fp32, 1 thread: step", run.step_ms, "ms")
        self.figures.add("A, fp32, 1 thread: fastest step", min(run.steps_ms), "ms")
        self.figures.add("A, fp32, 1 thread: share of the best rate", 100 * limit / run.step_ms, "%")
        self.figures.add("A, fp32, 1 thread: peak memory", run.peak_mib, "MiB")
        self.figures.bar(f"A: at most {limit / SHARE_OF_PRODUCTS:.0f} ms, the products at the best rate ÷ "
                         f"{SHARE_OF_PRODUCTS}", run.step_ms <= limit / SHARE_OF_PRODUCTS)

    def operators(self):
        for precision in ("fp32", "bf16"):
            self.operator_table(precision)

    def attention(self):
        """No cliff where a head's size fills no vectors of the processor."""
        output = subprocess.run([f"{self.bin}/bench_attention", "1"], check=True, capture_output=True, text=True,
                                timeout=300).stdout
        times = {}
        for name, value, _ in (line.split("\t") for line in output.splitlines()):
            what, head_dim = name.split()
            times.setdefault(what, {})[int(head_dim)] = float(value)
        for what, of in times.items():
            above = {d: of[d] / of[(d + 15) // 16 * 16] for d in of if d % 16}
            for d in (8, 16, 24, 32, 40, 48, 64, 128):
                self.figures.add(f"attention {what}, fp32, head_dim {d}: an element of the queries", of[d], "ns")
            worst = max(above, key=above.get)
            self.figures.bar(f"attention {what}: every head_dim within {HEAD_DIM_TIMES} × the next multiple of 16's time "
                             f"an element ({above[worst]:.2f} at {worst})", above[worst] <= HEAD_DIM_TIMES)

    def operator_table(self, precision):
        run = self.run(troupe__operator_times="true", bf16=str(precision == "bf16").lower())
        operators = run.operators_ms()
        total = run.step_ms
        groups = {text: 0.0 for text, _ in GROUPS}
        shown = []
        for name, ms in operators.items():
            text = next(text for text, words in GROUPS if any(name.startswith(word) for word in words))
            groups[text] += ms
            shown.append((ms, name))
        self.figures.add(f"A, {precision}, with its operators timed: step", total, "ms")
        for text, ms in groups.items():
            self.figures.add(f"  {text}", ms, "ms")
        self.figures.add("  between all these, step by step", run.unnamed_ms(), "ms")
        work = training.gigaflops("A")
        products = {"blocks": sum(ms for ms, name in shown if name.startswith("gemm")),
                    "classifier": sum(ms for ms, name in shown if name.startswith("head gemm"))}
        for part, ms in products.items():
            if ms > 0:
                self.figures.add(f"  products of the {part}: rate", work[part] / ms * 1e3, "GFLOP/s")
        for ms, name in sorted(shown, reverse=True):
            if ms >= 0.0005 * total:
                self.figures.note(f"    {name:<34}{ms:>10.2f} ms{100 * ms / total:>7.1f} %")

    def bf16(self):
        fp32, bf16 = self.a_in_fp32(), self.run(bf16="true")
        again = self.run()
        plain = median(fp32.steps_ms + again.steps_ms)
        self.figures.add("A, fp32, 1 thread, around the next: step", plain, "ms")
        self.figures.add("A, bf16, 1 thread: step", bf16.step_ms, "ms")
        self.figures.add("A, bf16: times fp32's speed", plain / bf16.step_ms, "")
        self.figures.add("A, bf16, 1 thread: peak memory", bf16.peak_mib, "MiB")
        self.figures.bar(f"A: bf16 at least {BF16_TIMES} times as fast as fp32", plain / bf16.step_ms >= BF16_TIMES)

    def models(self):
        for model in ("B", "gpt2"):
            best = product_limits(self.bin, model)["fp32 best"][0]
            run = self.run(model, steps=max(3, self.options.steps // 2))
            work = sum(training.gigaflops(model).values())
            self.figures.add(f"{NAMES[model]}: oneDNN's best rate at its shapes", best, "GFLOP/s")
            self.figures.add(f"{NAMES[model]}, fp32, 1 thread: step", run.step_ms, "ms")
            self.figures.add(f"{NAMES[model]}: {work:.0f} GFLOP, share of the best rate",
                             100 * work / best * 1e3 / run.step_ms, "%")
            self.figures.add(f"{NAMES[model]}: peak memory", run.peak_mib, "MiB")

    def masked(self):
        more = dict(stage="sft", dataset="question", template="empty")
        with Workplace() as place:
            rounds = [(self.run(place=place, train_on_prompt="true", **more), self.run(place=place, **more))
                      for _ in range(2)]
        whole = median([ms for run, _ in rounds for ms in run.steps_ms])
        masked = median([ms for _, run in rounds for ms in run.steps_ms])
        tokens = ROWS * LENGTH
        share = 100 * training.ANSWER / LENGTH
        self.figures.add("A, instruction rows, all tokens trained on", tokens / whole * 1e3, "tokens/s")
        self.figures.add(f"A, instruction rows, {share:.0f} % of the tokens trained on", tokens / masked * 1e3, "tokens/s")
        self.figures.bar(f"masked rows: at least {MASKED_TIMES} times the tokens/s (measured {whole / masked:.2f})",
                         whole / masked >= MASKED_TIMES)

    def ranks(self):
        one = self.a_in_fp32()
        two = self.run(troupe__threads_per_worker=2)
        self.figures.add("A, 1 rank, 2 threads: step", two.step_ms, "ms")
        self.figures.add("A, 1 rank, 2 threads: times one thread's speed", one.step_ms / two.step_ms, "")
        for strategy in ("ddp", "fsdp", "zero3"):
            run = self.run(troupe__workers=2, troupe__strategy=strategy)
            phases = run.phases_ms()
            self.figures.add(f"A, 2 ranks, {strategy}: step", run.step_ms, "ms")
            self.figures.add(f"A, 2 ranks, {strategy}: tokens of both", 2 * ROWS * LENGTH / run.step_ms * 1e3, "tokens/s")
            self.figures.add(f"A, 2 ranks, {strategy}: communication, waiting in it", phases["communication"], "ms")
            self.figures.add(f"A, 2 ranks, {strategy}: peak memory of a rank", run.peak_mib, "MiB")

    def start(self):
        with Workplace() as place:
            chosen = training.settings(place, "A", 0, max_steps=1)
            chosen.update(self.options.set)
            begun, done = [], []
            for i in range(self.options.repeats):
                run = Run(place, self.bin, f"start-{i}", chosen).start().finish(60)
                measured = training.Measured(run)
                begun.append(measured.first_step_begun_ms)
                done.append((run.step_at[1] - run.started_at) * 1e3)
        self.figures.add("A: command to the first step begun", median(begun), "ms")
        self.figures.add("A: command to the first step finished", median(done), "ms")
        self.figures.bar(f"A: the first step begins within {START_MS} ms", median(begun) < START_MS)

    def wire(self):
        """2 ranks on a node, then 4 on two: what the cable carries in a step, and what the strategy's
        formula says. The steps of zero1, zero2 and hsdp (shards within the nodes) are not timed."""
        for strategy in ("ddp", "zero3"):
            alone = self.run(troupe__workers=2, troupe__strategy=strategy)
            self.figures.add(f"A, {strategy}, 2 ranks on 1 node: step", alone.step_ms, "ms")
            run = self.cable(strategy, WARM_UP, WARM_UP + self.options.steps)
            self.figures.add(f"A, {strategy}, 4 ranks on 2 nodes: step", median(run.intervals(WARM_UP)) * 1e3, "ms")
        for strategy in ("zero1", "zero2"):
            self.cable(strategy, 1, 3)
        self.cable("hsdp", 1, 3, troupe__mesh="2,2")

    def cable(self, strategy, first, last, **more):
        """Bytes on the cable in the steps behind `first`, of the run that goes on to `last`. Returns that run."""
        with TwoNodes() as nodes, Workplace() as place:
            chosen = training.settings(place, "A", 0, troupe__workers=4, troupe__strategy=strategy, **more)
            chosen.update(self.options.set)
            plan = planned(place, self.bin, {**chosen, "max_steps": last})
            # What a short run sends besides its steps, a long one does, too.
            _, beginning = nodes.train(place, self.bin, f"short-{strategy}", {**chosen, "max_steps": first})
            run, whole = nodes.train(place, self.bin, f"wire-{strategy}", {**chosen, "max_steps": last})
        wire = (whole - beginning) / (last - first)
        formula = plan["sent_formula_bytes"]
        if strategy == "hsdp":
            # Of what a rank sends, the sums over replicas alone leave its node: half of its shard's gradients
            # for the other one to sum, the sums of the other half; 4 bytes each. A shard's state is 16 an element.
            expected = 4 * plan["state_formula_bytes"] / 16 * 4
        else:
            # A rank sends each of the others its part: 2 of 3 parts leave the node.
            expected = formula * 4 * 2 / 3
        off = 100 * (wire / expected - 1)
        mib = 1 << 20
        self.figures.add(f"A, {strategy}: a rank sends in a step, by the formula", formula / mib, "MiB")
        self.figures.add(f"A, {strategy}: of all ranks, between the nodes", expected / mib, "MiB")
        self.figures.add(f"A, {strategy}: on the cable in a step, both ways", wire / mib, "MiB")
        self.figures.bar(f"A, {strategy}: the formula's bytes within {WIRE_PERCENT:.0f} % ({off:+.2f} %)",
                         abs(off) <= WIRE_PERCENT)
        return run


def pair(text):
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"'{text}' is no KEY=VALUE")
    return key, value


def main():
    parser = script.parser("tools/bench train", __doc__)
    parser.add_argument("--only", type=script.some_of(PARTS), default=PARTS, help="these parts, with commas between them")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of a run, at least 7 for a report (7)")
    parser.add_argument("--repeats", type=int, default=5, help="starts (5)")
    parser.add_argument("--products", action="store_true", help="oneDNN's rate and ours at every shape, too")
    parser.add_argument("--set", type=pair, action="append", default=[], metavar="KEY=VALUE", help="a setting of the runs")
    options = parser.parse_args()
    options.set = dict(options.set)

    def measure(figures):
        bench = Bench(figures, options, build("troupe", "bench_products", "bench_attention"))
        for part in PARTS:
            if part in options.only:
                getattr(bench, part)()

    return script.run("train", options, measure)


if __name__ == "__main__":
    sys.exit(main())
