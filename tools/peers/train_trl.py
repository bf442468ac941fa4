"""DPO in TRL, timed: train_trl.py make MODEL_FOLDER
                   train_trl.py run MODEL_FOLDER PAIRS ROWS RATE WARM_UP STEPS RESULTS beside|before

`make` puts random weights beside the folder's config.json, for both sides to begin from. `run` trains with TRL's DPOTrainer
on PAIRS, a jsonl file of prompt, chosen and rejected, and writes RESULTS: the seconds of the timed steps, the losses, the
most memory that the process has had. `before`: the reference is asked before training.
"""

import json
import os
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402  after the number of threads
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402


def make(folder):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    model.save_pretrained(folder)


def high_water_mib():
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM:"))


class Clock(TrainerCallback):
    def __init__(self):
        self.at, self.losses = [], []

    def on_train_begin(self, *_, **__):
        self.at.append(time.perf_counter())

    def on_step_end(self, *_, **__):
        self.at.append(time.perf_counter())

    def on_log(self, *_, logs=None, **__):
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])


def run(folder, pairs, rows, rate, warm_up, steps, results, reference):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    model.config.use_cache = False
    with open(pairs, encoding="utf-8") as file:
        data = Dataset.from_list([json.loads(line) for line in file])
    settings = DPOConfig(output_dir=results + ".run", per_device_train_batch_size=rows, max_steps=warm_up + steps,
                         learning_rate=rate, lr_scheduler_type="linear", weight_decay=0.0, beta=0.1, max_length=None,
                         max_prompt_length=None, gradient_checkpointing=False, optim="adamw_torch_fused", bf16=False,
                         use_cpu=True, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
                         remove_unused_columns=False, seed=42,
                         precompute_ref_log_probs=reference == "before")
    clock = Clock()
    trainer = DPOTrainer(model=model, args=settings, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
    trainer.train()
    seconds = [after - before for before, after in zip(clock.at, clock.at[1:])]
    with open(results, "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds[warm_up:], "losses": clock.losses, "peak_mib": high_water_mib()}, file)


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        return make(sys.argv[2])
    folder, pairs, rows, rate, warm_up, steps, results, reference = sys.argv[2:]
    return run(folder, pairs, int(rows), float(rate), int(warm_up), int(steps), results, reference)


main()
