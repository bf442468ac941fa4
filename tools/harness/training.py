"""Training runs to be timed: models with random weights, synthetic data, what a run tells."""

import json
import os
import random

from . import processes
from .figures import Fault, median
from .run import Run

# The models of the bars: A has 15.19 M parameters, B 70.8 M, the third is GPT-2's smallest.
MODELS = {
    "A": {"model_type": "llama", "hidden_size": 288, "intermediate_size": 768, "num_hidden_layers": 6,
          "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 32000,
          "max_position_embeddings": 256, "tie_word_embeddings": True},
    "B": {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 12,
          "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
          "max_position_embeddings": 256, "tie_word_embeddings": True},
    "gpt2": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
             "vocab_size": 50257, "activation_function": "gelu_new", "resid_pdrop": 0, "embd_pdrop": 0,
             "attn_pdrop": 0, "tie_word_embeddings": True},
    # The shape of SmolLM-135M.
    "llama135": {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                 "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
                 "max_position_embeddings": 256, "tie_word_embeddings": True},
    # The shape of Qwen2.5-0.5B.
    "qwen494": {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
                "max_position_embeddings": 256, "tie_word_embeddings": True, "rope_theta": 1000000.0},
}
NAMES = {"A": "A (Llama 15 M)", "B": "B (Llama 71 M)", "gpt2": "GPT-2 124 M", "llama135": "Llama 135 M",
         "qwen494": "Qwen2 494 M"}
# Of a micro-batch on each rank.
ROWS, LENGTH = 4, 256
# Steps before the timed ones: products are compiled, memory is touched.
WARM_UP = 3
# Of a row that is masked like an instruction: tokens that are trained on.
ANSWER = 51

_EOS = "</s>"
# A character for every token: no merges, so that texts of random characters are random tokens.
_PLANES = [range(0x4E00, 0x9FA6), range(0x20000, 0x2A6D7), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE)]


def shape(name):
    """hidden, heads' width, keys' width, MLP's width, gated, layers, vocabulary."""
    config = MODELS[name]
    if config["model_type"] == "gpt2":
        hidden = config["n_embd"]
        return hidden, hidden, hidden, 4 * hidden, False, config["n_layer"], config["vocab_size"]
    hidden = config["hidden_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    return (hidden, hidden, keys, config["intermediate_size"], True, config["num_hidden_layers"],
            config["vocab_size"])


def gigaflops(name, rows=ROWS, length=LENGTH):
    """Of the products of a step, a multiplication and an addition counted as two: those with
    weights in the blocks, those of the classifier, and attention's two over all pairs of tokens
    (what a causal one may skip is counted). The backward pass is twice the forward pass."""
    hidden, queries, keys, inner, gated, layers, vocabulary = shape(name)
    tokens = rows * length
    block = hidden * (queries + 2 * keys) + queries * hidden + (3 if gated else 2) * hidden * inner
    return {"blocks": 6 * tokens * layers * block / 1e9, "classifier": 6 * tokens * hidden * vocabulary / 1e9,
            "attention": 12 * rows * length * length * queries * layers / 1e9}


def characters_of(count):
    characters = [chr(code) for plane in _PLANES for code in plane]
    return characters[:count]


def _write(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def model(place, name):
    """A folder with the model's configuration and a tokenizer of a character a token."""
    folder = place.file("model-" + name)
    if os.path.isdir(folder):
        return folder
    os.makedirs(folder)
    _write(os.path.join(folder, "config.json"), MODELS[name])
    vocabulary = {_EOS: 0}
    for id, character in enumerate(characters_of(MODELS[name]["vocab_size"] - 1), 1):
        vocabulary[character] = id
    token = {"id": 0, "content": _EOS, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False}
    _write(os.path.join(folder, "tokenizer.json"),
           {"version": "1.0", "added_tokens": [token], "normalizer": None, "pre_tokenizer": None,
            "post_processor": None, "decoder": None,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []}})
    _write(os.path.join(folder, "tokenizer_config.json"), {"eos_token": _EOS})
    return folder


def data(place, name, rows=128):
    """A folder with two data sets of rows of LENGTH random tokens: `text`, and `question`, whose
    answers are the last ANSWER tokens."""
    folder = place.file("data-" + name)
    if os.path.isdir(folder):
        return folder
    os.makedirs(folder)
    draw, characters = random.Random(7), characters_of(MODELS[name]["vocab_size"] - 1)
    texts = ["".join(draw.choices(characters, k=LENGTH)) for _ in range(rows)]
    with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as file:
        # The end of a text is a token.
        file.writelines(json.dumps({"text": text[1:]}) + "\n" for text in texts)
    with open(os.path.join(folder, "question.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"instruction": text[:-ANSWER], "output": text[-ANSWER:]}) + "\n" for text in texts)
    _write(os.path.join(folder, "dataset_info.json"),
           {"text": {"file_name": "text.jsonl", "columns": {"prompt": "text"}},
            "question": {"file_name": "question.jsonl", "columns": {"prompt": "instruction", "response": "output"}}})
    return folder


def settings(place, name, steps, **more):
    """key=value arguments of `troupe train`: pre-training from scratch, one thread, ROWS × LENGTH
    tokens a rank, everything kept for the backward pass."""
    chosen = {
        "stage": "pt", "finetuning_type": "full", "model_name_or_path": model(place, name),
        "train_from_scratch": "true", "dataset": "text", "dataset_dir": data(place, name), "cutoff_len": LENGTH,
        "per_device_train_batch_size": ROWS, "max_steps": WARM_UP + steps, "learning_rate": "3e-4",
        "logging_steps": 1000, "save_strategy": "no", "disable_gradient_checkpointing": "true",
        "troupe.threads_per_worker": 1, "troupe.workers": 1,
    }
    chosen.update({key.replace("__", "."): value for key, value in more.items()})
    return chosen


class Measured:
    """What a run of `steps` steps behind the warm-up was like."""

    def __init__(self, run, peak_mib=0):
        self.peak_mib = peak_mib  # of the rank that had most: resident at the most, shared pages included
        self.steps_ms = [seconds * 1e3 for seconds in run.intervals(WARM_UP)]
        with open(os.path.join(run.folder, "steps.jsonl"), encoding="utf-8") as file:
            self.lines = [json.loads(line) for line in file]
        first = self.lines[0]
        self.first_step_begun_ms = (run.step_at[1] - run.started_at - sum(first["seconds"].values())) * 1e3
        self.losses = [float.fromhex(line["loss"]) for line in self.lines]

    @property
    def step_ms(self):
        return median(self.steps_ms)

    def phases_ms(self):
        """Rank 0's phases by name, medians."""
        lines = self.lines[WARM_UP:]
        return {name: median([line["seconds"][name] for line in lines]) * 1e3 for name in lines[0]["seconds"]}

    def operators_ms(self):
        """Rank 0's operators by name, medians; troupe.operator_times must be set."""
        lines = [line["operators"] for line in self.lines[WARM_UP:]]
        names = sorted({name for line in lines for name in line})
        return {name: median([line.get(name, 0) for line in lines]) * 1e3 for name in names}

    def unnamed_ms(self):
        """What of a step no operator's name stands for, the median: step by step, for medians of parts
        add up to less than the median of a whole."""
        lines = self.lines[WARM_UP:]
        return median([ms - sum(line["operators"].values()) * 1e3 for ms, line in zip(self.steps_ms, lines)])

    @property
    def bytes_sent(self):
        return self.lines[-1]["bytes_sent"]


def high_water_mib(pid):
    """The most that a process has had resident so far (VmHWM); what getrusage tells of a peer."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("VmHWM:")]
    except OSError:
        return 0
    return int(lines[0].split()[1]) / 1024 if lines else 0


def measure(place, bin_folder, name, chosen, timeout_s=120):
    """Runs `troupe train` with the settings."""
    run = Run(place, bin_folder, name, chosen).start()
    total = int(chosen["max_steps"])
    # Looked at one step before the last: everything has been needed by then.
    if not run.wait_for_step(max(1, total - 1), timeout_s):
        raise Fault(f"run {name} ended early; {run.last_words()}")
    peaks = [high_water_mib(pid) for pid in processes.trainers(place.mark)]
    run.finish(timeout_s)
    return Measured(run, max(peaks, default=0))
