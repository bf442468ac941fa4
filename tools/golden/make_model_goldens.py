#!/usr/bin/env python3
"""Makes tests/golden/model/*.json and *.safetensors: what PyTorch says of small Llama models.

    python3 -m venv /tmp/venv-torch
    /tmp/venv-torch/bin/pip install torch numpy
    /tmp/venv-torch/bin/python tools/golden/make_model_goldens.py tests/golden/model

For each case: random weights, a batch with ignored labels, the logits' loss, every gradient, and ten
AdamW steps (losses, gradient norms, final weights), in float64 by autograd. The model below is written
from the formulas of the Llama architecture (RMSNorm, rotate-half RoPE, grouped-query causal
attention, SwiGLU). Weights, gradients and final weights are stored as fp32.
"""

import json
import math
import struct
import sys

import torch

torch.set_default_dtype(torch.float64)

CASES = {
    "llama_gqa_untied": dict(
        hidden_size=32, intermediate_size=36, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=48, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=False, segments=False, scaling=None),
    "llama_gqa_tied": dict(
        hidden_size=18, intermediate_size=29, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=6, vocab_size=64, rms_norm_eps=1e-6, rope_theta=500000.0,
        tie_word_embeddings=True, segments=True,
        scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                     original_max_position_embeddings=64)),
}
ROWS, LENGTH, STEPS = 3, 20, 10
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
MAX_NORM = 1.0


def inverse_frequencies(c):
    f = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2) / c["head_dim"])
    s = c["scaling"]
    if s is None:
        return f
    context = s["original_max_position_embeddings"]
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    wavelength = 2 * math.pi / f
    blend = (context / wavelength - low) / (high - low)
    middle = (1 - blend) * f / s["factor"] + blend * f
    return torch.where(wavelength > context / low, f / s["factor"],
                       torch.where(wavelength < context / high, f, middle))


def parameter_shapes(c):
    h, i, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, k = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], h)}
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        shapes |= {
            p + "input_layernorm.weight": (h,), p + "self_attn.q_proj.weight": (q, h),
            p + "self_attn.k_proj.weight": (k, h), p + "self_attn.v_proj.weight": (k, h),
            p + "self_attn.o_proj.weight": (h, q), p + "post_attention_layernorm.weight": (h,),
            p + "mlp.gate_proj.weight": (i, h), p + "mlp.up_proj.weight": (i, h),
            p + "mlp.down_proj.weight": (h, i)}
    shapes["model.norm.weight"] = (h,)
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (c["vocab_size"], h)
    return shapes


def rms_norm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def rotate(x, angles):  # x: (B, heads, T, D), angles: (B, T, D/2)
    cos, sin = torch.cos(angles)[:, None], torch.sin(angles)[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def logits_of(c, w, ids, positions, segments):
    b, t = ids.shape
    d, heads, kv = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    angles = positions[..., None] * inverse_frequencies(c)
    mask = torch.tril(torch.ones(t, t, dtype=torch.bool)).expand(b, t, t)
    if segments is not None:
        mask = mask & (segments[:, :, None] == segments[:, None, :])
    x = w["model.embed_tokens.weight"][ids]
    for n in range(c["num_hidden_layers"]):
        p = f"model.layers.{n}."
        y = rms_norm(x, w[p + "input_layernorm.weight"], c["rms_norm_eps"])
        split = lambda z, count: z.view(b, t, count, d).transpose(1, 2)
        q = rotate(split(y @ w[p + "self_attn.q_proj.weight"].T, heads), angles)
        k = rotate(split(y @ w[p + "self_attn.k_proj.weight"].T, kv), angles)
        v = split(y @ w[p + "self_attn.v_proj.weight"].T, kv)
        k, v = (z.repeat_interleave(heads // kv, 1) for z in (k, v))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(d)).masked_fill(~mask[:, None], -math.inf)
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, heads * d)
        x = x + y @ w[p + "self_attn.o_proj.weight"].T
        y = rms_norm(x, w[p + "post_attention_layernorm.weight"], c["rms_norm_eps"])
        gate, up = y @ w[p + "mlp.gate_proj.weight"].T, y @ w[p + "mlp.up_proj.weight"].T
        x = x + (torch.nn.functional.silu(gate) * up) @ w[p + "mlp.down_proj.weight"].T
    x = rms_norm(x, w["model.norm.weight"], c["rms_norm_eps"])
    return x @ w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"].T


def make_batch(c, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, c["vocab_size"], (ROWS, LENGTH), generator=g)
    labels = torch.where(torch.rand(ROWS, LENGTH, generator=g) < 0.3, torch.tensor(-100), ids)
    positions = torch.arange(LENGTH).expand(ROWS, LENGTH).clone()
    segments = None
    if c["segments"]:  # packed samples: positions restart, attention stays within
        cut = torch.tensor([5, 13, 20])
        segments = (torch.arange(LENGTH)[None] >= cut[:, None]).long() + 1
        positions = torch.where(segments == 2, positions - cut[:, None], positions)
    return ids, labels, positions, segments


def loss_of(c, w, batch):
    ids, labels, positions, segments = batch
    z = logits_of(c, w, ids, positions, segments)
    return torch.nn.functional.cross_entropy(
        z[:, :-1].reshape(-1, c["vocab_size"]), labels[:, 1:].reshape(-1), ignore_index=-100)


def save_safetensors(path, tensors):
    header, data = {}, b""
    for name in sorted(tensors):
        raw = tensors[name].detach().to(torch.float32).contiguous().numpy().tobytes()
        header[name] = dict(dtype="F32", shape=list(tensors[name].shape),
                            data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def decays(name):
    return "norm" not in name


def make_case(name, c, folder):
    g = torch.Generator().manual_seed(20)
    weights = {}
    for key, shape in parameter_shapes(c).items():
        value = torch.randn(shape, generator=g) * (0.1 if len(shape) == 1 else 0.15)
        value = value + 1 if len(shape) == 1 else value
        weights[key] = value.float().double().requires_grad_()
    batches = [make_batch(c, 100 + step) for step in range(STEPS)]
    stored = {"weight." + k: v.detach().clone() for k, v in weights.items()}
    optimizer = torch.optim.AdamW(
        [dict(params=[v for k, v in weights.items() if decays(k)]),
         dict(params=[v for k, v in weights.items() if not decays(k)], weight_decay=0.0)], **ADAMW)
    losses, norms = [], []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = loss_of(c, weights, batch)
        loss.backward()
        if step == 0:
            stored |= {"gradient." + k: v.grad.clone() for k, v in weights.items()}
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), MAX_NORM)
        losses.append(loss.item())
        norms.append(norm.item())
        optimizer.step()
    stored |= {"final." + k: v for k, v in weights.items()}
    save_safetensors(f"{folder}/{name}.safetensors", stored)
    config = {k: v for k, v in c.items() if k not in ("segments", "scaling")}
    config |= dict(model_type="llama", architectures=["LlamaForCausalLM"], rope_scaling=c["scaling"],
                   max_position_embeddings=64, hidden_act="silu")
    flat = lambda tensor: None if tensor is None else tensor.reshape(-1).tolist()
    document = dict(
        torch=torch.__version__, config=config, rows=ROWS, length=LENGTH,
        adamw=dict(lr=ADAMW["lr"], beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        max_norm=MAX_NORM, losses=losses, grad_norms=norms,
        batches=[dict(ids=flat(b[0]), labels=flat(b[1]), positions=flat(b[2]), segments=flat(b[3]))
                 for b in batches])
    with open(f"{folder}/{name}.json", "w") as f:
        json.dump(document, f)
        f.write("\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_model_goldens.py FOLDER")
    for name, case in CASES.items():
        make_case(name, case, sys.argv[1])
