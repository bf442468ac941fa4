#!/usr/bin/env python3
"""What a run's data cost before its first step, and what they hold in memory: text made here, tokenised by all cores
into a run's token cache, by two trainers of model A.

    tools/bench data [--gib N] [--set KEY=VALUE]... [--json]

Prints one thread's rate of the tokenizer (a pass of bench_tokenizer over part of the same texts), what as many such
processes as there are cores reach side by side, which is what the machine allows, the rate of the
start (all text over the time from the command to the line that tells the samples), the time of a second start to that
line, and the private memory (not mapped files) of driver, controller and trainers, beside a run on 100 MB. 1 GiB of
text; --gib 10 is what the bars are meant for. --set: a key of both runs, such as val_size=0.01, with which rows are
kept in a file before they are tokenised.
"""

import concurrent.futures
import json
import os
import resource
import sys
import threading
import time

import bench_first_step
from harness import processes, script
from harness.commands import output_of
from harness.figures import Fault
from harness.run import Run
from harness.texts import documents, english_like
from harness.workplace import Workplace, build

SMALL_BYTES = 100_000_000
SAMPLE_BYTES = 24_000_000  # of one thread's pass
BAR_RATE, BAR_SECOND_S, BAR_FLAT = 0.9, 1.0, 0.05
STEPS = 6
# Often enough that the short run's peak is seen, too.
LOOK_S = 0.02
RUN_S = 3600


def write_texts(path, size_wanted):
    """The same documents again and again, each with a number of its own. Returns the bytes of text."""
    texts, size, number = documents(english_like()), 0, 0
    with open(path, "w", encoding="utf-8") as file:
        while size < size_wanted:
            for text in texts:
                text = f"{number} {text}"
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                size += len(text.encode())
                number += 1
        # The disk has it, as it has a user's data: what the run writes would wait for it.
        file.flush()
        os.fsync(file.fileno())
    return size


class Peak:
    """The most private memory that a process has had while this looked."""

    def __init__(self, pid):
        self.kib, self._pid, self._ends = 0, pid, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self):
        while not self._ends.wait(LOOK_S):
            self.kib = max(self.kib, processes.held_kib(self._pid))

    def end(self):
        self._ends.set()
        self._thread.join()
        return self.kib


def follow(place, bin_folder, name, settings):
    """A run: seconds from the command to its samples, its processor time until then, and private MiB by process."""
    run = Run(place, bin_folder, name, settings).start()
    peak = Peak(run.process.pid)
    try:
        run.wait(lambda: bench_first_step.said(run, " rows became "), RUN_S, "the samples")
        told = bench_first_step.said(run, " rows became ")
        if told is None:
            raise Fault(f"run {name} ended without its samples; {run.last_words()}")
        cpu_s = processes.cpu_s(run.process.pid)
        held = {"driver, tokenising": peak.end()}
        run.wait_for_step(STEPS - 2, RUN_S)
        held["driver"] = processes.held_kib(run.process.pid)
        for pid in processes.actors(place.mark, "TrainController"):
            held["controller"] = processes.held_kib(pid)
        for pid, rank in run.ranks().items():
            held[f"rank {rank}"] = processes.held_kib(pid)
        run.finish(RUN_S)
    finally:
        run.stop()
    return told - run.started_at, cpu_s, {what: kib / 1024 for what, kib in held.items()}


def tokenizer_alone(place, bin_folder, model):
    """Bytes of text per second of one thread, of it per second of processor time, loading included, and of as many
    processes as there are cores, together."""
    texts, base = [], documents(english_like())
    while sum(len(text) for text in texts) < SAMPLE_BYTES:
        texts += [f"{len(texts) + i} {text}" for i, text in enumerate(base)]
    path = place.file("sample.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(texts, file, ensure_ascii=False)
    size = sum(len(text.encode()) for text in texts)

    def rate(number=0):
        took = json.loads(output_of([f"{bin_folder}/bench_tokenizer", model, path, place.file(f"ids{number}"), "1"],
                                    "bench_tokenizer", RUN_S))
        return size / took["first"][0]

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    alone = rate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with concurrent.futures.ThreadPoolExecutor() as threads:
        together = sum(threads.map(rate, range(os.cpu_count())))
    return alone, size / cpu_s, together


def measure(figures, place, bin_folder, options):
    model, data = bench_first_step.prepare(place, bin_folder)
    settings = {**bench_first_step.settings(model, data, 2, train_from_scratch="true"), "max_steps": STEPS,
                "cutoff_len": 1024, "per_device_train_batch_size": 1,
                **dict(pair.split("=", 1) for pair in options.set)}
    text = os.path.join(data, "t.jsonl")
    write_texts(text, SMALL_BYTES)
    _, _, small = follow(place, bin_folder, "small", settings)
    begun = time.monotonic()
    size = write_texts(text, options.gib * 2**30)
    figures.note(f"{size / 1e9:.2f} GB of text, written in {time.monotonic() - begun:.0f} s")
    rate, cpu_rate, together = tokenizer_alone(place, bin_folder, model)
    cores = os.cpu_count()
    figures.add("tokenizer, one thread", rate / 1e6, "MB/s")
    figures.add(f"tokenizer, {cores} processes of one thread", together / 1e6, "MB/s")
    took, cpu_s, large = follow(place, bin_folder, "large", settings)
    figures.add("start: samples told after", took, "s")
    figures.add(f"start: {cores} threads", size / took / 1e6, "MB/s")
    # Where others compute on this machine, too, these tell more.
    figures.add("tokenizer, one thread: of processor time", cpu_rate / 1e6, "MB/s")
    figures.add("start: of processor time", size / cpu_s / 1e6, "MB/s")
    figures.bar(f"start: {size / took / rate / cores:.2f} of {cores} × one thread's rate, at least {BAR_RATE}",
                size / took >= BAR_RATE * cores * rate)
    figures.note(f"of what {cores} processes that only tokenise reach side by side: {size / took / together:.2f}")
    again, _, _ = follow(place, bin_folder, "large", {**settings, "overwrite_output_dir": "true"})
    figures.add("second start: samples told after", again, "s")
    figures.bar(f"second start within {BAR_SECOND_S} s", again < BAR_SECOND_S)
    for what in small:
        figures.add(f"private memory, {what}: 100 MB", small[what], "MiB")
        figures.add(f"private memory, {what}: all", large[what], "MiB")
        figures.bar(f"private memory, {what}: within {BAR_FLAT:.0%} of that with 100 MB",
                    large[what] <= (1 + BAR_FLAT) * small[what])


def main():
    parser = script.parser("tools/bench data", __doc__)
    parser.add_argument("--gib", type=float, default=1, help="GiB of text (1)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of both runs")
    options = parser.parse_args()

    def both(figures):
        bin_folder = build("troupe", "bench_tokenizer")
        with Workplace() as place:
            measure(figures, place, bin_folder, options)

    return script.run("data", options, both)


if __name__ == "__main__":
    sys.exit(main())
