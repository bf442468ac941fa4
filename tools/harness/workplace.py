"""A folder of its own for one command, with what runs need: gone at the end, and so is every process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid

from . import processes
from .figures import Fault

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

MODELS = {
    # Steps of some ten milliseconds.
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=512),
    # Steps of some hundred milliseconds.
    "small": dict(hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
                  num_key_value_heads=4, vocab_size=4096),
    # Model A of the baselines: 15.2 M parameters.
    "15m": dict(hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6,
                num_key_value_heads=6, vocab_size=32000),
}
# (cutoff_len, per_device_train_batch_size): steps of the length that the model's name promises.
SHAPES = {"tiny": (256, 4), "small": (128, 4), "15m": (256, 4)}

# Settings of the caller's shell that would make a run part of something else.
_FOREIGN = ("TROUPE_ADDRESS", "MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "USE_RAY", "MAX_RESTARTS")


def build(*targets, preset="release"):
    """The folder with the programs: $TROUPE_BIN, or what tools/build makes."""
    if os.environ.get("TROUPE_BIN"):
        return os.path.abspath(os.environ["TROUPE_BIN"])
    done = subprocess.run([os.path.join(ROOT, "tools/build"), preset, *targets], check=False)
    if done.returncode != 0:
        raise Fault("the build failed")
    return os.path.join(ROOT, "build", preset, "bin")


class Workplace:
    """with Workplace() as place: everything under place.path, every process with place.mark."""

    def __init__(self, keep=False):
        # Short: sockets have paths of at most 107 bytes.
        self.path = tempfile.mkdtemp(prefix="troupe-")
        self.mark = uuid.uuid4().hex
        self._keep = keep

    def __enter__(self):
        # Ended from outside, it is taken down all the same.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        return self

    def __exit__(self, *_):
        processes.end_all(self.mark)
        if not self._keep:
            shutil.rmtree(self.path, ignore_errors=True)

    def file(self, *names):
        return os.path.join(self.path, *names)

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        return {**kept, "HOME": self.path, processes.MARK: self.mark}

    def model(self, name):
        """A folder with that model's configuration."""
        folder = self.file("model-" + name)
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "llama", "tie_word_embeddings": True, **MODELS[name]}, file)
        return folder

    def data(self, rows=2000):
        """A folder with a data set `t` of made-up lines."""
        folder = self.file("data")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "t.jsonl"), "w", encoding="utf-8") as file:
            for i in range(1, rows + 1):
                text = f"line {i} of {i * 7919 % 9973} about a fox, a dog and {i * i % 1009} stones"
                file.write(json.dumps({"text": text}) + "\n")
        with open(os.path.join(folder, "dataset_info.json"), "w", encoding="utf-8") as file:
            json.dump({"t": {"file_name": "t.jsonl", "columns": {"prompt": "text"}}}, file)
        return folder

    def settings(self, model, steps, **more):
        """key=value arguments of `troupe train`: full pre-training of a model from scratch."""
        length, batch = SHAPES[model]
        settings = {
            "stage": "pt", "finetuning_type": "full", "model_name_or_path": self.model(model),
            "train_from_scratch": "true", "dataset": "t", "dataset_dir": self.data(),
            "cutoff_len": length, "per_device_train_batch_size": batch, "max_steps": steps,
            "learning_rate": "1e-3", "logging_steps": 10, "save_strategy": "no",
            "disable_gradient_checkpointing": "true", "troupe.train_tokenizer": 300,
            "troupe.threads_per_worker": 1,
        }
        settings.update({key.replace("__", "."): value for key, value in more.items()})
        return settings
