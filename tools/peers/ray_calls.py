"""Actor calls through Ray's Python API on one node: "name value unit" lines, medians.

    python ray_calls.py [REPEATS]
"""

import os
import signal
import statistics
import sys
import time

import numpy
import ray

REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SECONDS = 1.0


def out(name, value, unit):
    print(f"{name}\t{value:.6g}\t{unit}", flush=True)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Echo:
    def pid(self):
        return os.getpid()

    def add(self, n):
        return n + 1

    def size(self, data):
        return len(data)


def rate(once, calls):
    """Calls a second: the median of REPEATS rounds of SECONDS each."""
    once()
    rates = []
    for _ in range(REPEATS):
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            once()
            count += calls
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates)


def latencies_us(once, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        once()
        times.append((time.perf_counter() - start) * 1e6)
    return sorted(times)


def calls():
    echo = Echo.remote()
    ray.get(echo.add.remote(1))
    times = latencies_us(lambda: ray.get(echo.add.remote(1)), 3000)
    out("sync p50", times[len(times) // 2], "us")
    out("sync p99", times[len(times) * 99 // 100], "us")
    out("async", rate(lambda: ray.get([echo.add.remote(1) for _ in range(1000)]), 1000), "1/s")
    data = numpy.zeros(1 << 20, dtype=numpy.uint8)
    out("1 MiB", rate(lambda: ray.get(echo.size.remote(data)), 1), "1/s")
    ray.kill(echo)


def lives():
    created = []
    for _ in range(4 * REPEATS):
        start = time.perf_counter()
        echo = Echo.remote()
        ray.get(echo.add.remote(1))
        created.append((time.perf_counter() - start) * 1e3)
        ray.kill(echo)
        time.sleep(0.1)
    out("create", statistics.median(created), "ms")
    echo = Echo.remote()
    respawned = []
    for _ in range(2 * REPEATS):
        pid = ray.get(echo.pid.remote())
        time.sleep(0.3)
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        while ray.get(echo.pid.remote(), timeout=60) == pid:
            pass
        respawned.append((time.perf_counter() - start) * 1e3)
    out("respawn", statistics.median(respawned), "ms")
    ray.kill(echo)


def main():
    start = time.perf_counter()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    out("start", (time.perf_counter() - start) * 1e3, "ms")
    calls()
    lives()
    ray.shutdown()


main()
