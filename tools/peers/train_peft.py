"""LoRA in PEFT over transformers, timed: train_peft.py make MODEL_FOLDER
                                       train_peft.py run MODEL_FOLDER TARGETS RANK ROWS WARM_UP STEPS RESULTS [nf4 [bf16]]

`make` puts random weights beside the folder's config.json, for both sides to begin from. `run` trains an
adapter on micro-batches of ROWS rows and writes RESULTS: the seconds of the timed steps, the losses, the most
memory that the process has had. nf4: over a base in 4 bits, double quantisation, by bitsandbytes. bf16: that
computes in bf16, under autocast as in transformers' Trainer.
"""

import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402  after the number of threads
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

LENGTH = 256
RATE = 3e-4


def make(folder):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    model.save_pretrained(folder)


def batch(step, vocabulary, rows):
    return torch.randint(0, vocabulary, (rows, LENGTH), generator=torch.Generator().manual_seed(1_000_003 * step))


def high_water_mib():
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


def quantization(dtype):
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                              bnb_4bit_compute_dtype=dtype)


def run(folder, targets, rank, rows, warm_up, steps, results, quantized, bf16):
    from peft import LoraConfig, get_peft_model

    dtype = torch.bfloat16 if bf16 else torch.float32
    chosen = {"quantization_config": quantization(dtype)} if quantized else {}
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=dtype, **chosen)
    base.config.use_cache = False
    model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets.split(","),
                                            task_type="CAUSAL_LM"))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.0,
                                  fused=True)
    seconds, losses = [], []
    ended = time.perf_counter()
    for number in range(warm_up + steps):
        tokens = batch(number, base.config.vocab_size, rows)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        began, ended = ended, time.perf_counter()
        seconds.append(ended - began)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    parameters = sum(p.numel() for p in base.parameters())
    with open(results, "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds[warm_up:], "losses": losses, "trained": trained, "parameters": parameters,
                   "peak_mib": high_water_mib()}, file)


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        return make(sys.argv[2])
    folder, targets, rank, rows, warm_up, steps, results, *kind = sys.argv[2:]
    return run(folder, targets, int(rank), int(rows), int(warm_up), int(steps), results, "nf4" in kind, "bf16" in kind)


main()
