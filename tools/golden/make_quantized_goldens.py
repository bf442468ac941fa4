#!/usr/bin/env python3
"""Makes tests/golden/quantized: what bitsandbytes keeps of small matrices in 4 and 8 bits, and of a small model.

    python3 tools/golden/make_quantized_goldens.py tests/golden/quantized

Needs torch, safetensors, transformers 5 and bitsandbytes 0.50. Each matrix NAME of matrices.safetensors has there, for nf4 and fp4,
NAME.TYPE.codes and NAME.TYPE.absmax as quantize_4bit gives them; once, since they do not depend on the type, the
magnitudes as double quantisation keeps them: NAME.offset, NAME.nested (8-bit codes), NAME.nested_absmax; and
of the smaller ones NAME.TYPE.values and NAME.TYPE.nested_values, what the codes stand for. `map` is bitsandbytes' signed dynamic map.
On a CPU bitsandbytes 0.50 rounds to a grid before it takes the nearest of the map, and takes the scale of another block
where rows of 96 are dequantised; on GPUs, and here, values are exact. In 8 bits: NAME.int8.codes, NAME.int8.absmax by row,
and NAME.int8.values of the smaller ones.
`base` is a random Llama, `base-KIND` what save_pretrained writes of it once it is loaded in 4 or 8 bits.
"""

import os
import sys

import bitsandbytes.functional as functional
import torch
from safetensors.torch import save_file


def exact_nested(values, table):
    codes, greatest = [], []
    for block in values.split(256):
        most = block.abs().max()
        scaled = block * (1 / most)
        codes.append((scaled[:, None] - table).abs().argmin(1).to(torch.uint8) if most > 0
                     else torch.zeros(len(block), dtype=torch.uint8))
        greatest.append(most)
    return torch.cat(codes), torch.stack(greatest)


def values_of(codes, table, absmax, matrix):
    codes = codes.reshape(-1)
    values = table[torch.stack([codes >> 4, codes & 15], 1).reshape(-1).int()][:matrix.numel()]
    return (values * absmax.repeat_interleave(64)[:matrix.numel()]).reshape(matrix.shape)


KINDS = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "llm_int8_skip_modules": ["lm_head", "mlp.up_proj"]},
    "int8": {"load_in_8bit": True},
}


def make_models(folder):
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(6)
    base = f"{folder}/base"
    LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                 num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
                                 initializer_range=0.2)).save_pretrained(base)
    for kind, chosen in KINDS.items():
        model = AutoModelForCausalLM.from_pretrained(base, quantization_config=BitsAndBytesConfig(**chosen),
                                                     dtype=torch.float32)
        model.save_pretrained(f"{base}-{kind}")
    for path in (base, *(f"{base}-{kind}" for kind in KINDS)):
        os.remove(f"{path}/generation_config.json")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: make_quantized_goldens.py FOLDER")
    torch.manual_seed(5)
    torch.set_num_threads(1)
    table = functional.create_dynamic_map()
    out = {"map": table}
    matrices = {"odd": torch.randn(5, 13), "block": torch.randn(8, 64), "uneven": torch.randn(41, 100) * 0.02,
                "many": torch.randn(130, 130) * torch.rand(130, 1), "zeros": torch.randn(6, 64)}
    matrices["zeros"][2:4] = 0
    matrices["bf16"] = (torch.randn(20, 96) * 0.05).bfloat16().float()
    for name, matrix in matrices.items():
        out[name] = matrix
        for kind in ("nf4", "fp4"):
            codes, state = functional.quantize_4bit(matrix, blocksize=64, quant_type=kind)
            at = f"{name}.{kind}"
            out[f"{at}.codes"], out[f"{at}.absmax"] = codes.reshape(-1), state.absmax
            offset = state.absmax.mean()
            nested, greatest = exact_nested(state.absmax - offset, table)
            absmax = torch.cat([table[block.long()] * most for block, most in zip(nested.split(256), greatest)]) + offset
            if matrix.numel() < 8000:
                out[f"{at}.values"] = values_of(codes, state.code, state.absmax, matrix)
                out[f"{at}.nested_values"] = values_of(codes, state.code, absmax, matrix)
        in_bytes, scales, _ = functional.int8_vectorwise_quant(matrix.half())
        at = f"{name}.int8"
        out[f"{at}.codes"], out[f"{at}.absmax"] = in_bytes, scales
        if matrix.numel() < 8000:
            out[f"{at}.values"] = in_bytes.float() * (scales.unsqueeze(1) * (1.0 / 127.0))
        out[f"{name}.offset"], out[f"{name}.nested"], out[f"{name}.nested_absmax"] = offset.reshape(1), nested, greatest
    os.makedirs(sys.argv[1], exist_ok=True)
    save_file({key: value.contiguous() for key, value in out.items()}, f"{sys.argv[1]}/matrices.safetensors")
    make_models(sys.argv[1])


if __name__ == "__main__":
    main()
