"""A plain DistributedDataParallel training, as PyTorch's tutorials have it: started by torchrun or by
`troupe run`, which it knows nothing of.

    train_ddp.py EVENTS SECONDS

Trains until SECONDS have passed, in the first attempt, and for 3 steps in a later one; rank 0 and 1 append a
line to EVENTS after each step: "rank pid attempt step unix-time".
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

events, seconds = sys.argv[1], float(sys.argv[2])
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
until = time.time() + (seconds if attempt == 0 else 0)
step = 0
with open(events, "a", buffering=1) as log:
    while step < 3 or time.time() < until:
        loss = model(torch.ones(8, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        log.write(f"{rank} {os.getpid()} {attempt} {step} {time.time()}\n")
        time.sleep(0.02)
dist.destroy_process_group()
