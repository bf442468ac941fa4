"""ray_train.py EVENTS FOLDER STEPS SAVE_EVERY: TorchTrainer with two workers that may fail three times."""

import os
import sys
import tempfile

import ray
import ray.train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

HERE = os.path.dirname(os.path.abspath(__file__))
FILE = "checkpoint.pt"


def worker(config):
    sys.path.insert(0, config["here"])
    from job import Training

    def save(training):
        with tempfile.TemporaryDirectory() as folder:
            saved = None
            if training.rank == 0:
                training.write(os.path.join(folder, FILE))
                saved = Checkpoint.from_directory(folder)
            ray.train.report({"step": training.step}, checkpoint=saved)

    rank, last = ray.train.get_context().get_world_rank(), ray.train.get_checkpoint()
    wrapped = ray.train.torch.prepare_model
    if last:
        with last.as_directory() as folder:
            training = Training(rank, config["events"], wrapped, os.path.join(folder, FILE))
    else:
        training = Training(rank, config["events"], wrapped)
    training.run(config["steps"], config["save_every"], save)


events, folder, steps, save_every = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ray.init(num_cpus=4, include_dashboard=False, object_store_memory=1 << 30,
         _temp_dir=os.path.join(folder, "ray"))
TorchTrainer(
    worker,
    train_loop_config={"here": HERE, "events": events, "steps": steps, "save_every": save_every},
    torch_config=TorchConfig(backend="gloo"),
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(name="run", storage_path=os.path.join(folder, "storage"),
                         failure_config=FailureConfig(max_failures=3),
                         checkpoint_config=CheckpointConfig(num_to_keep=2))).fit()
