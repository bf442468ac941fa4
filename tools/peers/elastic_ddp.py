"""torchrun --standalone --nproc-per-node=2 --max-restarts=3 elastic_ddp.py EVENTS FOLDER STEPS SAVE_EVERY"""

import os
import sys

from job import Training, torch

events, folder, steps, save_every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
checkpoint = os.path.join(folder, "checkpoint.pt")


def save(training):
    if training.rank == 0:
        training.write(checkpoint)


torch.distributed.init_process_group("gloo")
training = Training(torch.distributed.get_rank(), events, torch.nn.parallel.DistributedDataParallel,
                    checkpoint if os.path.exists(checkpoint) else None)
training.run(steps, save_every, save)
torch.distributed.destroy_process_group()
