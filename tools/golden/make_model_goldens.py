#!/usr/bin/env python3
"""Makes tests/golden/model: what HF transformers says of small random models of every family.

    python3 tools/golden/make_model_goldens.py tests/golden/model [CASE…]     # all, or those

Needs torch and transformers 5. Each case is a folder:

    config.json, model.safetensors   as save_pretrained writes them
    golden.json                      batches, the losses of 20 AdamW steps, gradient norms, greedy text
    golden.safetensors               logits of the first batch; the first step's gradients by name

Weights are random, biases and norms too, so that none can be forgotten unseen. All is computed in
fp32 with eager attention on one thread. `rope.json` has the rotary frequencies that transformers
computes for a list of configurations. `train_llama` has 20 steps of four micro-batches each, whose
losses every sharding strategy at world sizes 1, 2 and 4 must reproduce: micro-batch i of a step goes
to rank i mod world as its accumulation step i / world.
"""

import json
import os
import re
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

STEPS, WARMUP = 20, 4
ADAMW = dict(lr=5e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
MAX_NORM = 1.0
IGNORE = -100

SMALL = dict(vocab_size=48, hidden_size=24, intermediate_size=28, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             bos_token_id=1, eos_token_id=2)
TINY = SMALL | dict(hidden_size=16, intermediate_size=20, vocab_size=40)


def rope(kind, **values):
    return dict(rope_parameters=dict(rope_type=kind, **values))


# name: (class, configuration, what the batches have)
CASES = {
    "llama": ("Llama", SMALL | dict(rms_norm_eps=1e-5), {}),
    "llama_llama3": ("Llama", TINY | dict(
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
        tie_word_embeddings=True) | rope(
            "llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64), dict(segments=True)),
    "llama_linear_bias": ("Llama", TINY | dict(attention_bias=True, mlp_bias=True) | rope(
        "linear", rope_theta=10000.0, factor=2.0), {}),
    "llama_yarn": ("Llama", TINY | dict(
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024) | rope(
        "yarn", rope_theta=10000.0, factor=4.0, beta_fast=8, beta_slow=1,
        original_max_position_embeddings=256), {}),
    "mistral": ("Mistral", TINY | dict(sliding_window=6, num_hidden_layers=3), {}),
    "qwen2": ("Qwen2", SMALL | dict(tie_word_embeddings=True, rope_parameters=dict(
        rope_type="default", rope_theta=1000000.0)), {}),
    "qwen2_window": ("Qwen2", TINY | dict(
        use_sliding_window=True, sliding_window=5, max_window_layers=1), {}),
    "qwen3": ("Qwen3", SMALL | dict(head_dim=10), {}),
    # Without a padding token: PyTorch gives its row of the embedding no gradient.
    "gemma": ("Gemma", SMALL | dict(head_dim=10, pad_token_id=None), {}),
    # Two windowed layers, whose rotation is another one, around one that sees all.
    "gemma3_text": ("Gemma3", TINY | dict(
        head_dim=10, num_hidden_layers=3, pad_token_id=None, sliding_window=5, query_pre_attn_scalar=60,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters=dict(
            full_attention=dict(rope_type="linear", rope_theta=1000.0, factor=2.0),
            sliding_attention=dict(rope_type="default", rope_theta=100.0))), {}),
    "phi3": ("Phi3", SMALL | dict(pad_token_id=None, sliding_window=5), {}),
    "gpt2": ("GPT2LMHead", dict(
        vocab_size=48, n_embd=24, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2), dict(segments=True)),
    "gpt2_scaled": ("GPT2LMHead", dict(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32, n_inner=20, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False,
        scale_attn_by_inverse_layer_idx=True), {}),
}


# Names of configuration classes that differ from those of their models.
CONFIGURATIONS = {"Gemma3": "Gemma3Text"}


def make_model(kind, values, seed):
    config = getattr(transformers, CONFIGURATIONS.get(kind, kind.replace("LMHead", "")) + "Config")(**values)
    config._attn_implementation = "eager"
    name = kind + "Model" if kind.endswith("LMHead") else kind + "ForCausalLM"
    model = getattr(transformers, name)(config).float().train()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(0.15 * noise)
            else:
                parameter.copy_(0.1 * noise + (0.0 if key.endswith("bias") else 1.0))
    return model


def make_batch(vocab_size, rows, length, seed, segments=False):
    """Token ids, labels (some ignored), and where asked for packed samples: positions, segments."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab_size, (rows, length), generator=g)
    labels = torch.where(torch.rand(rows, length, generator=g) < 0.3, torch.tensor(IGNORE), ids)
    batch = dict(ids=ids, labels=labels)
    if segments:  # positions restart, attention stays within
        cut = torch.tensor([length // 3 + row for row in range(rows)])[:, None]
        index = torch.arange(length)[None]
        batch["segments"] = (index >= cut).long() + 1
        batch["positions"] = torch.where(index >= cut, index - cut, index)
    return batch


def arguments(batch):
    """The batch as the model's forward takes it."""
    out = dict(input_ids=batch["ids"], use_cache=False)
    if "segments" in batch:
        length = batch["ids"].shape[1]
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool))
        seen = seen & (batch["segments"][:, :, None] == batch["segments"][:, None, :])
        out["position_ids"] = batch["positions"]
        out["attention_mask"] = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]
    return out


def targets_of(batch):
    return (batch["labels"][:, 1:] != IGNORE).sum()


def make_optimizer(model):
    """HF Trainer's groups (Trainer.get_decay_parameter_names): by name, and no LayerNorm."""
    no_decay = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
    norms = {f"{name}.{key}" for name, module in model.named_modules()
             if isinstance(module, torch.nn.LayerNorm) for key in ("weight", "bias")}
    groups = dict(decay=[], none=[])
    for name, parameter in model.named_parameters():
        skip = name in norms or no_decay.search(name.lower())
        groups["none" if skip else "decay"].append(parameter)
    optimizer = torch.optim.AdamW(
        [dict(params=groups["decay"]), dict(params=groups["none"], weight_decay=0.0)], **ADAMW)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    return optimizer, schedule


def train(model, steps, after_first):
    """`steps`: lists of micro-batches. Returns the figures of the run."""
    optimizer, schedule = make_optimizer(model)
    losses, norms, rates = [], [], []
    for step, batches in enumerate(steps):
        optimizer.zero_grad()
        count, total = sum(targets_of(batch) for batch in batches), 0.0
        for batch in batches:
            loss = model(**arguments(batch), labels=batch["labels"], num_items_in_batch=count).loss
            loss.backward()
            total += loss.item()
        if step == 0:
            after_first(model)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        losses.append(total)
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    final = {name: p.detach().double().norm().item() for name, p in model.named_parameters()}
    return dict(losses=losses, grad_norms=norms, learning_rates=rates, final_norms=final)


def flat(batch):
    return {key: value.reshape(-1).tolist() for key, value in batch.items()}


def header(rows, length):
    return dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__,
                rows=rows, length=length, steps=STEPS, warmup_steps=WARMUP, schedule="linear",
                adamw=dict(lr=ADAMW["lr"], beta1=ADAMW["betas"][0], beta2=ADAMW["betas"][1],
                           eps=ADAMW["eps"], weight_decay=ADAMW["weight_decay"]),
                max_norm=MAX_NORM)


def write_json(path, document):
    # A list of numbers takes one line.
    text = json.dumps(document, indent=1)
    text = re.sub(r"\[\s+([-0-9.,e\s]+?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]",
                  text)
    with open(path, "w") as f:
        f.write(text + "\n")


def save_model(model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    for name in os.listdir(folder):
        if name not in ("config.json", "model.safetensors"):
            os.remove(f"{folder}/{name}")


def make_case(name, kind, values, batch_options, folder):
    rows, length = 2, 16
    model = make_model(kind, values, 20)
    folder = f"{folder}/{name}"
    save_model(model, folder)
    steps = [[make_batch(model.config.vocab_size, rows, length, 100 + step, **batch_options)]
             for step in range(STEPS)]
    with torch.no_grad():
        tensors = {"logits": model(**arguments(steps[0][0])).logits.contiguous()}
    prompt = steps[0][0]["ids"][:1, :4]
    greedy = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False,
                            max_new_tokens=12, eos_token_id=None, pad_token_id=0)
    document = header(rows, length) | train(model, steps, lambda m: tensors.update(
        {"gradient." + key: p.grad.clone() for key, p in m.named_parameters()}))
    document |= dict(greedy=greedy[0].tolist(), batches=[flat(step[0]) for step in steps])
    save_file(tensors, f"{folder}/golden.safetensors")
    write_json(f"{folder}/golden.json", document)


def make_train_llama(folder):
    """Three tiles of 16,384 elements a block, stored as bf16 (every weight is a bf16 number)."""
    rows, length, count = 2, 16, 4
    model = make_model("Llama", SMALL | dict(
        hidden_size=64, intermediate_size=128, vocab_size=128, rms_norm_eps=1e-5), 30)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    save_model(model, f"{folder}/train_llama")
    weights = load_file(f"{folder}/train_llama/model.safetensors")
    save_file({key: value.bfloat16() for key, value in weights.items()},
              f"{folder}/train_llama/model.safetensors", metadata={"format": "pt"})
    steps = [[make_batch(128, rows, length, 1000 + step * count + i) for i in range(count)]
             for step in range(STEPS)]
    document = header(rows, length) | dict(micro_batches=count)
    document |= train(model, steps, lambda m: None)
    document |= dict(steps_data=[[flat(batch) for batch in step] for step in steps])
    write_json(f"{folder}/train_llama/golden.json", document)


ROPE = [
    dict(rope_type="default", rope_theta=10000.0),
    dict(rope_type="linear", rope_theta=500000.0, factor=4.0),
    dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
         high_freq_factor=4.0, original_max_position_embeddings=8192),
    dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0,
         high_freq_factor=4.0),
    dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0,
         original_max_position_embeddings=32768),
    dict(rope_type="yarn", rope_theta=10000.0, factor=16.0),
    dict(rope_type="yarn", rope_theta=10000.0, factor=40.0, mscale=1.0, mscale_all_dim=0.8,
         beta_fast=32, beta_slow=1, original_max_position_embeddings=4096),
    dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, attention_factor=1.25, truncate=False,
         beta_fast=16.0, beta_slow=2.0, original_max_position_embeddings=2048),
    dict(rope_type="yarn", rope_theta=10000.0, factor=1.0, mscale=0.7,
         original_max_position_embeddings=2048),
]


def make_rope(path):
    cases = []
    for parameters in ROPE:
        values = SMALL | dict(hidden_size=512, num_attention_heads=8, max_position_embeddings=16384,
                              rope_parameters=dict(parameters))
        config = transformers.LlamaConfig(**values)
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        cases.append(dict(config=values | dict(model_type="llama", rope_parameters=parameters),
                          frequencies=[float(x) for x in rotary.inv_freq],
                          scale=float(rotary.attention_scaling)))
    write_json(path, cases)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: make_model_goldens.py FOLDER [CASE…]")
    torch.set_num_threads(1)
    for name in sys.argv[2:] or CASES:
        kind, values, options = CASES[name]
        make_case(name, kind, values, options, sys.argv[1])
    if sys.argv[2:]:
        sys.exit()
    make_train_llama(sys.argv[1])
    make_rope(f"{sys.argv[1]}/rope.json")
