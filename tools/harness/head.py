"""What a cluster's head is asked from outside: each question is a `troupe` command."""

import subprocess
import time

from .figures import Fault

_ASK_S = 5


def ask(command, words, address, environment):
    """The output of `troupe WORDS`; `command`: the program, and what stands before it."""
    try:
        done = subprocess.run([*command, *words, "--address", address], env=environment, capture_output=True, text=True,
                              timeout=_ASK_S, check=False)
    except subprocess.TimeoutExpired:
        raise Fault(f"troupe {words[0]} did not answer within {_ASK_S} s") from None
    if done.returncode != 0:
        raise Fault(f"troupe {' '.join(words)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def wait_for(condition, what, timeout_s):
    """Until condition() holds; questions that are not answered meanwhile are asked again."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            if value := condition():
                return value
            seen = "not so"
        except Fault as fault:
            seen = str(fault)
        if time.monotonic() > until:
            raise Fault(f"{what} was not there within {timeout_s} s: {seen}")
        # Each question is a process of its own: few of them, beside a run that is measured.
        time.sleep(0.1)
