"""Gloo's collectives between two processes, through torch.distributed: "name<TAB>value<TAB>unit" lines.

    gloo_rates.py MIB REPEATS SCRATCH
"""

import datetime
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

RANKS = 2
SMALL_ROUNDS = 500
TIMEOUT_S = 120


def median_s(repeats, operation):
    times = []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def rank_main(rank, mib, repeats, scratch):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{scratch}/gloo", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=TIMEOUT_S))
    count = mib * 2**20 // 4
    whole, shard = torch.ones(count), torch.ones(count // RANKS)
    small = torch.ones(1)
    operations = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, shard),
    }
    for name, operation in operations.items():
        operation()
        rate = mib * 2**20 / 1e9 / median_s(repeats, operation)
        if rank == 0:
            print(f"{name}\t{rate}\tGB/s", flush=True)

    def many_small():
        for _ in range(SMALL_ROUNDS):
            dist.all_reduce(small, op=dist.ReduceOp.MAX)

    latency = median_s(repeats, many_small) / SMALL_ROUNDS * 1e6
    if rank == 0:
        print(f"all_reduce_4_bytes\t{latency}\tus", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # The listener's address would be the machine's otherwise.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    processes.spawn(rank_main, args=(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]), nprocs=RANKS)
