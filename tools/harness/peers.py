"""The systems that Troupe is compared with: their environment, and namespaces to run them in."""

import fcntl
import glob
import hashlib
import os
import shutil
import socket
import struct
import subprocess
import sys

from .figures import Fault
from .workplace import ROOT

FOLDER = os.path.join(ROOT, "tools/peers")
# First argument of a program that into_namespaces() has started again.
INSIDE = "--inside-namespaces"
# A fresh environment is 6 GB to fetch.
_INSTALL_TIMEOUT_S = 900


def python(figures, more=None):
    """The Python of the peers' environment ($TROUPE_PEERS_VENV, or build/peers/venv), made where it
    is missing or has other versions than tools/peers/requirements.txt. `more`: a file beside it with
    what not every comparison needs."""
    venv = os.path.abspath(os.environ.get("TROUPE_PEERS_VENV") or os.path.join(ROOT, "build/peers/venv"))
    program = os.path.join(venv, "bin/python")
    _install(figures, venv, "requirements.txt",
             [[sys.executable, "-m", "venv", venv],
              [program, "-m", "pip", "install", "--quiet", "-r", "requirements.txt"],
              [program, "-c", "import ray.train.torch, torch, transformers"]])
    if more:
        # What is built there asks for the PyTorch that is there.
        _install(figures, venv, more,
                 [[program, "-m", "pip", "install", "--quiet", "setuptools", "wheel"],
                  [program, "-m", "pip", "install", "--quiet", "--no-build-isolation", "-r", "requirements.txt",
                   "-r", more]])
    return program


def own_python(figures, name, requirements, imports):
    """The Python of an environment that one comparison has for itself, build/peers/NAME."""
    venv = os.path.join(ROOT, "build/peers", name)
    program = os.path.join(venv, "bin/python")
    _install(figures, venv, requirements,
             [[sys.executable, "-m", "venv", venv],
              [program, "-m", "pip", "install", "--quiet", "-r", requirements],
              [program, "-c", "import " + imports]])
    return program


def extensions(program):
    """TORCH_EXTENSIONS_DIR: the folder with the part of DeepSpeed that it compiles at its first use."""
    return os.path.join(os.path.dirname(os.path.dirname(program)), "extensions")


def compile_deepspeed(figures, program):
    """Compiles that part where it is missing, so that no step waits for it: DeepSpeed's communication
    between the ranks of a machine. It needs g++; ninja is in the environment."""
    folder = extensions(program)
    if glob.glob(os.path.join(folder, "*/deepspeed_shm_comm*.so")):
        return
    figures.note(f"compiling DeepSpeed's extension into {folder}: some minutes")
    # A lock that one ended in the midst of it has left would be waited for without end.
    for lock in glob.glob(os.path.join(folder, "*/lock")):
        os.remove(lock)
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": folder, "DS_ACCELERATOR": "cpu",
                   "PATH": os.path.dirname(program) + ":" + os.environ["PATH"]}
    try:
        done = subprocess.run(
            [program, "-c", "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load()"],
            env=environment, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Fault(f"DeepSpeed's extension was not compiled within {_INSTALL_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise Fault(f"DeepSpeed's extension cannot be compiled:\n{(done.stdout + done.stderr).strip()[-2000:]}")


def _install(figures, venv, requirements, commands):
    """Runs the commands unless the environment has what the file says."""
    with open(os.path.join(FOLDER, requirements), "rb") as file:
        wanted = hashlib.sha256(file.read()).hexdigest()
    stamp = os.path.join(venv, requirements.removesuffix(".txt") + ".sha256")
    if os.path.exists(os.path.join(venv, "bin/python")) and os.path.exists(stamp):
        with open(stamp, encoding="utf-8") as file:
            if file.read().strip() == wanted:
                return
    figures.note(f"installing the peers of {requirements} into {venv}: some minutes")
    for command in commands:
        done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S,
                              check=False)
        if done.returncode != 0:
            raise Fault(f"the peers cannot be installed: {' '.join(command)}:\n{done.stderr.strip()[-2000:]}")
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(wanted + "\n")


def arguments():
    """Whether into_namespaces() has started this program, and its own arguments."""
    given = sys.argv[1:]
    return (True, given[1:]) if given[:1] == [INSIDE] else (False, given)


def into_namespaces(program, arguments):
    """Becomes this program in namespaces of its own: no network but loopback (Ray listens on the
    machine's address otherwise), and processes that end with it."""
    unshare = shutil.which("unshare")
    if not unshare:
        raise Fault("unshare is missing (package util-linux)")
    flags = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        flags = ["--user", "--map-root-user", *flags]
    if subprocess.run([unshare, *flags, "true"], capture_output=True, check=False).returncode != 0:
        raise Fault("namespaces cannot be made here: run it as root, or allow user namespaces")
    os.execv(unshare, [unshare, *flags, sys.executable, os.path.abspath(program), INSIDE, *arguments])


def loopback_up():
    """`ip link set lo up`."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, get_flags, request))[1]
        fcntl.ioctl(control, set_flags, struct.pack("16sh14x", b"lo", flags | up))
