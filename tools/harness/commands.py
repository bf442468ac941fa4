"""Commands of which only what they print matters."""

import subprocess

from .figures import Fault


def output_of(command, what, timeout_s, environment=None):
    """What it writes to its standard output. That it fails, or does not end in time, is a Fault with its last words."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise Fault(f"{what} did not end within {timeout_s} s") from None
    if done.returncode != 0:
        raise Fault(f"{what} failed with code {done.returncode}: {done.stderr.strip()[-1500:]}")
    return done.stdout
