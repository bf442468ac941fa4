#!/usr/bin/env python3
"""Makes tests/golden/evaluation/golden.json: what transformers' Trainer.evaluate() and
Seq2SeqTrainer.evaluate() report.

    python3 tools/golden/make_evaluation_golden.py tests/golden/model/llama tests/golden/evaluation

Needs torch, transformers 5 and accelerate. The model is one of make_model_goldens.py; the samples
have different lengths and numbers of targets, so that a mean over targets, over batches and over
samples are different numbers. Padding is to a multiple of 8, as LLaMA-Factory's collator does it.
"""

import json
import os
import sys
import tempfile

import torch
import transformers

SAMPLES, IGNORE, PAD = 11, -100, 0
BATCH_SIZES = [1, 3, 4, 16]


def make_samples():
    generator = torch.Generator().manual_seed(5)
    samples = []
    for index in range(SAMPLES):
        length = int(torch.randint(3, 22, (1,), generator=generator))
        ids = torch.randint(3, 48, (length,), generator=generator).tolist()
        prompt = int(torch.randint(0, length - 1, (1,), generator=generator))
        samples.append({"input_ids": ids, "labels": [IGNORE] * prompt + ids[prompt:]})
    return samples


def collate(rows):
    length = -(-max(len(row["input_ids"]) for row in rows) // 8) * 8
    pad = lambda values, filler: values + [filler] * (length - len(values))
    return {
        "input_ids": torch.tensor([pad(row["input_ids"], PAD) for row in rows]),
        "labels": torch.tensor([pad(row["labels"], IGNORE) for row in rows]),
        "attention_mask": torch.tensor(
            [pad([1] * len(row["input_ids"]), 0) for row in rows]),
    }


def main():
    folder, target = sys.argv[1], sys.argv[2]
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").float()
    samples = make_samples()
    def evaluated(trainer_class, arguments_class):
        eval_loss = {}
        for size in BATCH_SIZES:
            with tempfile.TemporaryDirectory() as scratch:
                arguments = arguments_class(
                    output_dir=scratch, per_device_eval_batch_size=size, use_cpu=True, report_to=[],
                    disable_tqdm=True, remove_unused_columns=False)
                trainer = trainer_class(
                    model=model, args=arguments, eval_dataset=samples, data_collator=collate)
                eval_loss[str(size)] = trainer.evaluate()["eval_loss"]
        return eval_loss

    eval_loss = evaluated(transformers.Trainer, transformers.TrainingArguments)
    # LLaMA-Factory's stage sft: it lets a short batch count as much as the others.
    seq2seq = evaluated(transformers.Seq2SeqTrainer, transformers.Seq2SeqTrainingArguments)
    os.makedirs(target, exist_ok=True)
    with open(os.path.join(target, "golden.json"), "w") as out:
        json.dump({"pad": PAD, "samples": samples, "eval_loss": eval_loss, "eval_loss_seq2seq": seq2seq},
                  out)
        out.write("\n")
    print(f"transformers {transformers.__version__}, torch {torch.__version__}: {eval_loss}")


if __name__ == "__main__":
    main()
