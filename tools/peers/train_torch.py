"""One training job in PyTorch, timed: train_torch.py MODE MODEL PRECISION THREADS WARM_UP STEPS RESULTS

MODE: eager, compiled, ddp, fsdp, zero3 (the last three under torchrun). MODEL: a folder with a
config.json. Every rank writes RESULTS-RANK.json: the seconds of the timed steps, and the most memory
that it has had.
"""

import json
import os
import sys
import time

mode, model_folder, precision, threads, warm_up, steps, results = sys.argv[1:]
threads, warm_up, steps = int(threads), int(warm_up), int(steps)
os.environ["OMP_NUM_THREADS"] = str(threads)
# One compiling process, as the job has a core of its own at most.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["DS_ACCELERATOR"] = "cpu"

import torch  # noqa: E402  after the number of threads
import torch.distributed as dist  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

ROWS, LENGTH = 4, 256
RATE = 3e-4


def make_model():
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(model_folder)
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def batch(step, rank, vocabulary):
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    return torch.randint(0, vocabulary, (ROWS, LENGTH), generator=generator)


def optimizer_of(model):
    # Fused: the fastest that it has, and what transformers' Trainer takes.
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)


def plain_step(model, wrapped):
    optimizer = optimizer_of(model)

    def step(tokens):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = wrapped(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return loss

    return step


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def deepspeed_step(model):
    import deepspeed

    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer_of(model),
        config={"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": 1,
                "zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False})

    def step(tokens):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss

    return step


def make_step():
    model = make_model()
    if mode == "zero3":
        return deepspeed_step(model)
    if mode in ("ddp", "fsdp"):
        dist.init_process_group("gloo")
    if mode == "fsdp":
        model = sharded(model)
    wrapped = model
    if mode == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    if mode == "compiled":
        wrapped = torch.compile(model)
    return plain_step(model, wrapped)


def high_water_mib():
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


def main():
    torch.set_num_threads(threads)
    with open(os.path.join(model_folder, "config.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)["vocab_size"]
    step = make_step()
    rank = dist.get_rank() if dist.is_initialized() else 0
    seconds, losses = [], []
    ended = time.perf_counter()
    for number in range(warm_up + steps):
        losses.append(float(step(batch(number, rank, vocabulary)).detach()))
        began, ended = ended, time.perf_counter()
        seconds.append(ended - began)
    with open(f"{results}-{rank}.json", "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds[warm_up:], "first_s": seconds[0], "losses": losses,
                   "peak_mib": high_water_mib()}, file)
    if dist.is_initialized():
        dist.destroy_process_group()


main()
