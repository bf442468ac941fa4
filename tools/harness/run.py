"""One training run, followed from outside."""

import json
import os
import signal
import subprocess
import threading
import time

from . import processes, results
from .figures import Fault, median
from .lines import LineWatch


class Run:
    """`troupe train` as a process. Steps and events are known by the lines that it writes. `inside`:
    what stands before the command; `environment`: more than the workplace's."""

    def __init__(self, place, bin_folder, name, settings, arguments=(), inside=(), environment=None):
        self.place = place
        self.name = name
        self.folder = place.file(name)
        self.log = place.file(name + ".log")
        self.step_at = {}  # step -> when its line came first
        self.repeated = []  # steps that were computed again after their line had come
        self.event_at = []  # (event, when it came)
        self.said_at = []  # (line of output, when it came)
        self._changed = threading.Condition()
        self._seen_lines = set()
        settings = {**settings, "output_dir": self.folder}
        self._environment = environment or {}
        self._command = [*inside, os.path.join(bin_folder, "troupe"), "train"]
        self._command += [f"{key}={value}" for key, value in settings.items()] + list(arguments)
        self.process = None
        self.started_at = self.ended_at = None

    def start(self):
        os.makedirs(self.folder, exist_ok=True)
        paths = [os.path.join(self.folder, file) for file in ("steps.jsonl", "events.jsonl")]
        self._watch = LineWatch([*paths, self.log], self._on_line)
        self.started_at = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**self.place.environment(), **self._environment}, cwd=self.place.path, start_new_session=True)
        threading.Thread(target=self._reap, daemon=True).start()
        return self

    def _reap(self):
        self.process.wait()
        with self._changed:
            self.ended_at = time.monotonic()
            self._changed.notify_all()

    def _on_line(self, name, line, at):
        with self._changed:
            if name == "steps.jsonl":
                if line in self._seen_lines:  # a file rewritten
                    return
                self._seen_lines.add(line)
                line = json.loads(line)
                if line["step"] not in self.step_at:
                    self.step_at[line["step"]] = at
                elif "seconds" in line:
                    self.repeated.append(line["step"])
                # Else: a process that died behind its line; the next one has finished the step, and
                # knows no times of it.
            elif name == "events.jsonl":
                if line not in self._seen_lines:
                    self._seen_lines.add(line)
                    self.event_at.append((json.loads(line), at))
            else:
                self.said_at.append((line, at))
            self._changed.notify_all()

    # --- waiting

    def wait(self, condition, timeout_s, what):
        """Until condition() holds; False where the run has ended without it."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while not condition():
                left = until - time.monotonic()
                if self.ended_at is not None:
                    return False
                if left <= 0:
                    raise Fault(f"run {self.name}: {what} was not seen within {timeout_s:.0f} s; {self.last_words()}")
                self._changed.wait(min(left, 1.0))
        return True

    def last_step(self):
        with self._changed:
            return max(self.step_at, default=0)

    def wait_for_step(self, step, timeout_s):
        return self.wait(lambda: max(self.step_at, default=0) >= step, timeout_s, f"step {step}")

    def random_moment(self, random, step_s):
        """Somewhere within a step."""
        time.sleep(random.random() * step_s)

    def finish(self, timeout_s):
        """Waits for its end, which must be good."""
        self.wait(lambda: False, timeout_s, "its end")
        self._watch.close()
        if self.process.returncode != 0:
            raise Fault(f"run {self.name} ended with code {self.process.returncode}; {self.last_words()}")
        return self

    def stop(self):
        """Ends it, whatever it is doing."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        processes.end_all(self.place.mark)

    def last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            lines = file.read().strip().splitlines()[-5:]
        return "its last words:\n    " + "\n    ".join(lines or ["(none)"])

    # --- what it is

    def ranks(self):
        """pid -> rank of its trainers."""
        return processes.trainers(self.place.mark)

    def events(self, kind=None):
        with self._changed:
            return [(event, at) for event, at in self.event_at if kind is None or event["event"] == kind]

    @property
    def wall_s(self):
        return self.ended_at - self.started_at

    def intervals(self, first=3):
        """Seconds between the lines of consecutive steps, from step `first` on."""
        at = self.step_at
        return [at[step] - at[step - 1] for step in sorted(at) if step > first and step - 1 in at]

    def step_s(self):
        """A normal step: the median."""
        return median(self.intervals())

    def mean_step_s(self):
        """What a step takes over the whole run, its first steps left out. Where more processes than cores take part some steps
        take twice as long as others, with nothing done to the run: then the median is no measure of its pace."""
        intervals = self.intervals()[10:]
        return sum(intervals) / len(intervals)

    def differences(self, other):
        return results.differences(self.folder, other.folder)


def undisturbed(place, bin_folder, settings, timeout_s, name="undisturbed", arguments=()):
    return Run(place, bin_folder, name, settings, arguments).start().finish(timeout_s)
