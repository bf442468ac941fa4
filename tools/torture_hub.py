"""A file of 1 GB from a hub on this machine, the connections cut at random moments: it must be complete, its
hash right, and no byte have come twice beyond a piece. A part of `tools/torture`."""

import hashlib
import http.server
import json
import os
import random
import subprocess
import threading
import time

SIZE = 1_000_000_000
PIECE = 8 << 20  # what a request brings where there are several connections
BLOCK = 1 << 20
COMMIT = "a" * 40


def block(number):
    """One of the file's blocks: different everywhere, and made in no time."""
    return (number.to_bytes(8, "little") + _NOISE[8:])


_NOISE = random.Random(1).randbytes(BLOCK)


def content(begin, end):
    """The file's bytes [begin, end), in parts."""
    while begin < end:
        number, inside = divmod(begin, BLOCK)
        part = block(number)[inside:inside + end - begin]
        yield part
        begin += len(part)


class Hub:
    """Speaks as much of the hub's API as a download asks for; counts bytes of bodies, and cuts."""

    def __init__(self, cuts, seed):
        self.digest = hashlib.sha256()
        for part in content(0, SIZE):
            self.digest.update(part)
        self.lock = threading.Lock()
        self.sent = self.requests = self.cut = 0
        source = random.Random(seed)
        # By how many bytes have left when each comes.
        self.cuts = sorted(source.randrange(SIZE) for _ in range(cuts))
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, code, headers, length=0):
                self.send_response(code)
                for name, value in {**headers, "Content-Length": length}.items():
                    self.send_header(name, str(value))
                self.end_headers()

            def do_HEAD(self):
                self.answer(302, {"Location": f"{hub.endpoint}/lfs", "X-Repo-Commit": COMMIT, "X-Linked-Size": SIZE,
                                  "X-Linked-Etag": f'"{hub.digest.hexdigest()}"'})

            def do_GET(self):
                if self.path.startswith("/api/"):
                    body = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "model.safetensors"}]}).encode()
                    self.answer(200, {}, len(body))
                    self.wfile.write(body)
                    return
                first, last = 0, SIZE - 1
                asked = self.headers.get("Range")
                if asked:
                    begin, end = asked.removeprefix("bytes=").split("-")
                    first, last = int(begin), int(end) if end else SIZE - 1
                self.answer(206 if asked else 200, {"Content-Range": f"bytes {first}-{last}/{SIZE}"} if asked else {},
                            last + 1 - first)
                with hub.lock:
                    hub.requests += 1
                try:
                    for part in content(first, last + 1):
                        self.wfile.write(part)
                        with hub.lock:
                            hub.sent += len(part)
                            cuts = bool(hub.cuts) and hub.sent >= hub.cuts[0]
                            if cuts:
                                hub.cuts.pop(0)
                                hub.cut += 1
                        if cuts:
                            # What is on its way arrives; nothing more comes.
                            self.wfile.flush()
                            self.connection.shutdown(2)
                            self.close_connection = True
                            return
                except OSError:
                    self.close_connection = True

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def hub(figures, place, bin_folder, options):
    server = Hub(options.cuts, options.seed)
    home = place.file("hf")
    environment = {**os.environ, "HF_HOME": home, "HF_ENDPOINT": server.endpoint, "no_proxy": "127.0.0.1",
                   "HF_TOKEN": "hf_of_torture", "HF_HUB_OFFLINE": "0"}
    began = time.monotonic()
    done = subprocess.run([f"{bin_folder}/troupe", "download", "acme/large", "--json"], env=environment, text=True,
                          capture_output=True, timeout=options.timeout, check=False)
    seconds = time.monotonic() - began
    figures.bar("the download ended well", done.returncode == 0)
    if done.returncode != 0:
        figures.note(done.stderr.strip()[-300:])
        return
    digest = hashlib.sha256()
    with open(os.path.join(json.loads(done.stdout)["folder"], "model.safetensors"), "rb") as file:
        while part := file.read(BLOCK):
            digest.update(part)
    figures.add("download of 1 GB", seconds, "s")
    figures.add("connections cut", server.cut, "")
    figures.add("requests for bytes", server.requests, "")
    figures.add("bytes that left the server beyond the file's", server.sent - SIZE, "B")
    figures.bar("complete, hash right", digest.digest() == server.digest.digest())
    figures.bar(f"{options.cuts} cuts", server.cut == options.cuts)
    figures.bar("no byte twice beyond a piece", server.sent - SIZE <= PIECE)
    figures.bar("the token is in nothing that was said", "hf_of_torture" not in done.stdout + done.stderr)
    server.server.shutdown()
