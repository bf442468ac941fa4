"""Actor calls, objects and tasks through Ray's Python API on one node: "name value unit" lines, medians.

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


def seconds(once):
    start = time.perf_counter()
    once()
    return time.perf_counter() - start


@ray.remote
def plus_one(n):
    return n + 1


@ray.remote
def count(*values):
    return len(values)


@ray.remote
def many(n):
    return list(range(n))


def objects():
    data = numpy.ones(100 << 20, dtype=numpy.uint8)
    for _ in range(2):
        ray.put(data)
    puts = [seconds(lambda: ray.put(data)) for _ in range(3 * REPEATS)]
    out("put 100 MiB", 100 / 1024 / statistics.median(puts), "GiB/s")
    ref = ray.put(data)
    ray.get(ref)

    def read():
        array = ray.get(ref)
        return int(array[0]) + int(array[-1])

    out("get 100 MiB", statistics.median(latencies_us(read, 1000)), "us")
    refs = [ray.put(i) for i in range(10_000)]
    waits = [seconds(lambda: ray.wait(refs[:1000], num_returns=1000)) for _ in range(REPEATS)]
    out("wait 1000", statistics.median(waits) * 1e3, "ms")
    ray.get(count.remote(*refs[:10]))
    out("10000 references", seconds(lambda: ray.get(count.remote(*refs))), "s")


def tasks():
    ray.get([plus_one.remote(i) for i in range(1000)])
    out("task p50", statistics.median(latencies_us(lambda: ray.get(plus_one.remote(1)), 3000)), "us")
    out("tasks", rate(lambda: ray.get([plus_one.remote(i) for i in range(1000)]), 1000), "1/s")
    several = many.options(num_returns=3000)
    ray.get(several.remote(3000))
    results = [seconds(lambda: ray.get(several.remote(3000))) for _ in range(REPEATS)]
    out("3000 results", statistics.median(results) * 1e3, "ms")


def main():
    start = time.perf_counter()
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    out("start", (time.perf_counter() - start) * 1e3, "ms")
    calls()
    objects()
    tasks()
    lives()
    ray.shutdown()


main()
