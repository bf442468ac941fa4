"""Tiny random stand-ins of published models, adapters and data sets, so that a run file can be run as it stands."""

import array
import json
import pathlib
import random
import re

HIDDEN, INTERMEDIATE, HEADS, KEY_HEADS, HEAD_DIM = 32, 64, 4, 2, 8
# Tokens that chat templates of Llama and Qwen write.
SPECIAL = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>",
           "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<think>", "</think>",
           "<|finetune_right_pad_id|>", "<|finetune_right_pad|>", "<|eot|>", "<start_of_turn>", "<end_of_turn>", "<|user|>",
           "<|assistant|>", "<|system|>", "<|end|>"]

# The first that occurs in a model's name gives its model_type.
MODEL_TYPES = [("llama-4", "llama4"), ("dbrx", "dbrx"), ("btlm", "btlm"), ("stablelm", "stablelm"), ("jamba", "jamba"),
               ("mixtral", "mixtral"), ("mistral-small-4", "mistral4"), ("mistral", "mistral"), ("magistral", "mistral"),
               ("gpt-oss", "gpt_oss"), ("phi-3", "phi3"), ("gemma-3", "gemma3"), ("nemotron", "nemotron_h"),
               ("glm-4.7-flash", "glm4_moe_lite"), ("glm-5", "glm_moe_dsa"), ("kimi", "kimi_linear"),
               ("minimax", "minimax_m2"), ("falcon-e", "falcon_e"), ("skyfall", "llama"), ("deepseek-v4", "deepseek_v4"),
               ("qwen3.5-27b", "qwen3_5"), ("qwen3.5-122b", "qwen3_5_moe"), ("deepseek-v2", "deepseek_v2"), ("deepseek-v3", "deepseek_v3"), ("moss-vl", "moss_vl"),
               ("qwen3-vl-30b-a3b", "qwen3_vl_moe"), ("qwen3-vl", "qwen3_vl"), ("qwen3.5-35b-a3b", "qwen3_5_moe"),
               ("qwen3.5-397b", "qwen3_5_moe"), ("qwen3.5", "qwen3_5"), ("qwen3-30b-a3b", "qwen3_moe"),
               ("qwen3-235b-a22b", "qwen3_moe"), ("qwen3", "qwen3"), ("qwen2.5-vl", "qwen2_5_vl"),
               ("qwen2-vl", "qwen2_vl"), ("qwen2", "qwen2"), ("llama", "llama")]
ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
                 "phi3": "Phi3ForCausalLM", "gemma3": "Gemma3ForConditionalGeneration"}


def model_type(name):
    """The model_type of a published model, or nothing."""
    return next((kind for part, kind in MODEL_TYPES if part in name.lower()), None)


def write_safetensors(path, tensors):
    """tensors: name → (shape, floats)."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, values) in sorted(tensors.items()):
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, (_, values) in sorted(tensors.items()):
            file.write(array.array("f", values).tobytes())


def _random_tensor(source, *shape):
    count = 1
    for width in shape:
        count *= width
    return list(shape), [source.gauss(0, 0.02) for _ in range(count)]


def _bytes_to_letters():
    """GPT-2's letters for the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in shown}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(shown)))
    return letters


def _write_tokenizer(folder, eos):
    letters = _bytes_to_letters()
    vocabulary = {letters[byte]: byte for byte in range(256)}
    added = [{"id": 256 + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                  "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "pad_token": "<|endoftext|>"}))


def write_model(folder, kind, layers=2, quantization=None):
    """A random model of that model_type: configuration and tokenizer, and weights, none where the type is not one of
    ARCHITECTURES."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    eos = "<|eot_id|>" if kind == "llama" else "<|im_end|>"
    vocabulary = -(-(256 + len(SPECIAL)) // 32) * 32
    config = {"model_type": kind, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers,
              "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "head_dim": HEAD_DIM,
              "vocab_size": vocabulary, "max_position_embeddings": 4096, "torch_dtype": "float32",
              "eos_token_id": 256 + SPECIAL.index(eos), "tie_word_embeddings": False}
    if kind == "gemma3":  # a language model in one that sees pictures
        config = {"text_config": config | {"model_type": "gemma3_text", "tie_word_embeddings": True}, "vision_config": {},
                  "model_type": kind}
    if kind in ARCHITECTURES:
        config["architectures"] = [ARCHITECTURES[kind]]
    if quantization:
        config["quantization_config"] = {"quant_method": quantization, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _write_tokenizer(folder, eos)
    if kind not in ARCHITECTURES:
        write_safetensors(folder / "model.safetensors", {})
        return
    source = random.Random(1)
    queries, keys = HEADS * HEAD_DIM, KEY_HEADS * HEAD_DIM
    ones = lambda width: ([width], [1.0] * width)
    tensors = {"model.embed_tokens.weight": _random_tensor(source, vocabulary, HIDDEN),
               "model.norm.weight": ones(HIDDEN), "lm_head.weight": _random_tensor(source, vocabulary, HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = ones(HIDDEN)
        inputs = [("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys),
                  ("mlp.gate_proj", INTERMEDIATE), ("mlp.up_proj", INTERMEDIATE)]
        if kind == "phi3":
            inputs = [("self_attn.qkv_proj", queries + 2 * keys), ("mlp.gate_up_proj", 2 * INTERMEDIATE)]
        for name, out, width in [(name, out, HIDDEN) for name, out in inputs] + [
                ("self_attn.o_proj", HIDDEN, queries), ("mlp.down_proj", HIDDEN, INTERMEDIATE)]:
            tensors[f"{at}{name}.weight"] = _random_tensor(source, out, width)
            if kind == "qwen2" and name[-6:] in ("q_proj", "k_proj", "v_proj"):
                tensors[f"{at}{name}.bias"] = ([out], [0.0] * out)
        if kind in ("qwen3", "gemma3"):
            for name in ("q_norm", "k_norm"):
                tensors[f"{at}self_attn.{name}.weight"] = ones(HEAD_DIM)
        if kind == "gemma3":
            for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                tensors[f"{at}{name}.weight"] = ones(HIDDEN)
    if kind == "gemma3":
        tensors = {"language_model." + name: tensor for name, tensor in tensors.items()}
        tensors["vision_tower.vision_model.head.weight"] = ones(HIDDEN)
    write_safetensors(folder / "model.safetensors", tensors)


def write_adapter(folder, base, layers=2):
    """A random LoRA adapter of such a model, as PEFT leaves it."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "bias": "none", "r": 4,
         "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}, indent=2))
    source = random.Random(2)
    tensors = {}
    for layer in range(layers):
        for name, out in (("q_proj", HEADS * HEAD_DIM), ("v_proj", KEY_HEADS * HEAD_DIM)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{at}.lora_A.weight"] = _random_tensor(source, 4, HIDDEN)
            tensors[f"{at}.lora_B.weight"] = _random_tensor(source, out, 4)
    write_safetensors(folder / "adapter_model.safetensors", tensors)


def _row(kind, i):
    question, answer = f"What is {i} and {i + 1}?", f"It is {2 * i + 1}."
    messages = [{"from": "human", "value": question}]
    if kind == "text":
        return {"text": f"{question} {answer} " * 50}  # packed rows are as long as cutoff_len
    if kind == "ranking":
        return {"conversations": messages, "chosen": {"from": "gpt", "value": answer},
                "rejected": {"from": "gpt", "value": "No."}}
    if kind == "kto":
        return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
                "label": i % 2 == 0}
    if kind == "images":
        return {"messages": [{"role": "user", "content": "<image>" + question}, {"role": "assistant", "content": answer}],
                "images": [f"{i}.png"]}
    return {"instruction": question, "input": "", "output": answer}


# What dataset_info.json says of a set whose rows are not alpaca's.
_FORMATS = {
    "text": {"columns": {"prompt": "text"}},
    "ranking": {"ranking": True, "formatting": "sharegpt",
                "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}},
    "kto": {"formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"},
            "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
    "images": {"formatting": "sharegpt", "columns": {"messages": "messages", "images": "images"},
               "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
}
_KINDS = [("c4", "text"), ("wiki", "text"), ("dpo", "ranking"), ("rlhf", "ranking"), ("kto", "kto"), ("mllm", "images"),
          ("llava", "images")]


_COMMIT = "c" * 40


def is_hub_name(name):
    """Whether it is the name of a repository, not a path."""
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and not name.startswith((".", "saves/"))


def in_cache(hub, kind, name, revision="main"):
    """The folder of a repository's snapshot in huggingface_hub's cache at `hub`, in its layout but that files lie in it
    themselves. kind: model or dataset."""
    folder = pathlib.Path(hub) / f"{kind}s--{name.replace('/', '--')}"
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(_COMMIT)
    snapshots = folder / "snapshots"
    snapshots.mkdir(exist_ok=True)
    return snapshots / _COMMIT


def cache_rows(hub, entries):
    """The data sets of Axolotl's entries in the cache: each the subset, the split and the files that its entries name."""
    configs = {}
    for entry in entries:
        name, split = entry["path"], entry.get("split", "train").split("[")[0] or "train"
        folder = in_cache(hub, "dataset", name, entry.get("revision", "main"))
        subset = entry.get("name", "default")
        files = entry.get("data_files") or [f"{subset}/{split}.jsonl"]
        for file in [files] if isinstance(files, str) else files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write_rows(folder / file, entry.get("type", "pretrain"), entry)
            configs.setdefault(folder, {}).setdefault(subset, []).append(f"  - split: {split}\n    path: {file}\n")
    for folder, subsets in configs.items():
        text = "".join(f"- config_name: {subset}\n  data_files:\n{''.join(files)}" for subset, files in subsets.items())
        (folder / "README.md").write_text(f"---\nconfigs:\n{text}---\n")


def write_rows(path, kind, entry, rows=256):
    """Rows of one of Axolotl's types, with the columns that the entry of its data set names."""
    mappings = entry.get("message_property_mappings") or {}
    role, content = mappings.get("role", "role"), mappings.get("content", "content")
    human, assistant = ("human", "gpt") if role == "from" else ("user", "assistant")
    lines = []
    for i in range(rows):
        question, answer = f"What is {i} and {i + 1}?", f"It is {2 * i + 1}."
        if kind == "chat_template":
            row = {entry.get("field_messages", "messages"):
                   [{role: human, content: question}, {role: assistant, content: answer}]}
        elif kind in ("completion", "pretrain"):
            row = {entry.get("field", "text"): f"{question} {answer} " * 4}
        else:
            row = {"instruction": question, "input": "", "output": answer}
        lines.append(json.dumps(row))
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def write_data(folder, names, rows=64):
    """Data sets of those names, each in the format of the published one."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    info = {}
    for name in names:
        kind = next((kind for part, kind in _KINDS if name.startswith(part)), "alpaca")
        (folder / f"{name}.json").write_text(json.dumps([_row(kind, i) for i in range(rows)]))
        info[name] = {"file_name": f"{name}.json", **_FORMATS.get(kind, {})}
    (folder / "dataset_info.json").write_text(json.dumps(info))
