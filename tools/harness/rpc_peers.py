"""What a C++ user would take in Troupe's place for calls between processes, from Debian's packages: their programs
(tools/peers/rpc_*.cc), compiled here when they are first wanted, and again when a source or a package changed."""

import hashlib
import os
import shlex
import shutil
import subprocess

from .figures import Fault
from .workplace import ROOT

_SOURCES = os.path.join(ROOT, "tools/peers")
_BUILT = os.path.join(ROOT, "build/peers/rpc")
_COMPILE_TIMEOUT_S = 300
_FLAGS = ["g++", "-O2", "-std=c++17", "-pthread", "-I.", f"-I{_SOURCES}"]


class Peer:
    """One program. `generate`: commands that make sources first; `pkg_config`: modules that give flags; `ways`: of
    unix, tcp, tls. `packages`: of Debian."""

    def __init__(self, name, source, packages, ways, pkg_config=(), libraries=(), generate=(), generated=()):
        self.name = name
        self.packages = packages
        self.ways = ways
        self._source = source
        self._pkg_config = pkg_config
        self._libraries = libraries
        self._generate = generate
        self._generated = generated

    def missing(self):
        """Its packages that are not installed."""
        return [package for package in self.packages if _version(package) is None]

    def program(self, figures):
        """The path of its program, compiled where that is needed."""
        folder = os.path.join(_BUILT, self._source)
        program = os.path.join(folder, self._source)
        stamp = os.path.join(folder, "stamp")
        wanted = self._stamp()
        if os.path.exists(program) and os.path.exists(stamp):
            with open(stamp, encoding="utf-8") as file:
                if file.read() == wanted:
                    return program
        figures.note(f"compiling {self._source} for {self.name}")
        os.makedirs(folder, exist_ok=True)
        for command in self._generate:
            _run(command, folder, self.name)
        flags = _run(["pkg-config", "--cflags", "--libs", *self._pkg_config], folder, self.name) if self._pkg_config else ""
        _run([*_FLAGS, os.path.join(_SOURCES, self._source + ".cc"), *self._generated, "-o", program, *shlex.split(flags),
              *self._libraries], folder, self.name)
        with open(stamp, "w", encoding="utf-8") as file:
            file.write(wanted)
        return program

    def version(self):
        """Of its first package, without Debian's revision; empty: it has none."""
        return (_version(self.packages[0]) or "").split("-")[0] if self.packages else ""

    def _stamp(self):
        """What the program is made of."""
        hashed = hashlib.sha256(" ".join(f"{package} {_version(package)}" for package in self.packages).encode())
        for name in sorted(os.listdir(_SOURCES)):
            if name == "rpc_measure.h" or name.startswith((self._source + ".", "rpc_calls.")):
                with open(os.path.join(_SOURCES, name), "rb") as file:
                    hashed.update(file.read())
        return hashed.hexdigest()


def _version(package):
    if not shutil.which("dpkg-query"):
        return None
    asked = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status} ${Version}", package], capture_output=True,
                           text=True, check=False)
    status, _, version = asked.stdout.partition(" ")
    return version if status == "installed" else None


def _run(command, folder, name):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as why:
        raise Fault(f"the program for {name} cannot be compiled: {why}") from None
    if done.returncode != 0:
        raise Fault(f"the program for {name} cannot be compiled: {command[0]}: {done.stderr.strip()[-1500:]}")
    return done.stdout


RAW = Peer("raw", "rpc_raw", [], ["unix", "tcp"])
PEERS = [
    Peer("Cap'n Proto", "rpc_capnp", ["libcapnp-dev", "capnproto"], ["unix", "tcp", "tls"],
         pkg_config=["capnp-rpc", "kj-tls", "kj-async"],
         generate=[["capnp", "compile", "-oc++:.", f"--src-prefix={_SOURCES}", f"{_SOURCES}/rpc_calls.capnp"]],
         generated=["rpc_calls.capnp.c++"]),
    Peer("gRPC", "rpc_grpc", ["libgrpc++-dev", "protobuf-compiler-grpc", "libprotobuf-dev", "protobuf-compiler"],
         ["unix", "tcp", "tls"], pkg_config=["grpc++"], libraries=["-lprotobuf"],
         generate=[["protoc", f"-I{_SOURCES}", "--cpp_out=.", "--grpc_out=.",
                    f"--plugin=protoc-gen-grpc={shutil.which('grpc_cpp_plugin') or 'grpc_cpp_plugin'}",
                    f"{_SOURCES}/rpc_calls.proto"]],
         generated=["rpc_calls.pb.cc", "rpc_calls.grpc.pb.cc"]),
    Peer("CAF", "rpc_caf", ["libcaf-dev"], ["tcp", "tls"], libraries=["-lcaf_io", "-lcaf_openssl", "-lcaf_core"]),
]


def make_certificate(folder):
    """cert.pem and key.pem for "localhost", in `folder`."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
               "1", "-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost", "-addext",
               "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Fault(f"no certificate for the peers: {done.stderr.strip()[-500:]}")
