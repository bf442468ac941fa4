#!/usr/bin/env python3
"""What a quantised base takes of memory: while it is loaded, and then.

    tools/bench quantized [--code nf4|fp4|int8] [--layers 24] [--json]

A model of Qwen2.5-0.5B's shape with random weights in bf16 is written, once with all its layers and once with half of
them, and LoRA of rank 1 is trained beside each for two steps. Looked at is a trainer's memory of its own (RssAnon and
RssShmem, every few milliseconds; pages of files are not counted).

Bars: until the first step it has at no time more than `troupe plan` says of training, and one tensor: its values in fp32 and
its codes. The weights of the layers that the smaller model lacks take at most 4.2 bits each in 4 bits with double
quantisation: the difference of the two runs in shared memory, where the state lies, less what is trained.
"""

import json
import os
import random
import struct
import subprocess
import sys
import threading
import time
from array import array

from harness import processes, script, training
from harness.figures import Fault
from harness.run import Run
from harness.workplace import Workplace, build

MODEL = "qwen494"
STEPS = 2
TIMEOUT_S = 240
BITS_BAR = {"nf4": 4.2, "fp4": 4.2, "int8": 8.2}
KEYS = {"nf4": {"quantization_bit": 4}, "fp4": {"quantization_bit": 4, "quantization_type": "fp4"}, "int8": {"quantization_bit": 8}}


def linear_shapes(config):
    """Of a layer's linear modules: (outputs, inputs)."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    return {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, hidden), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner)}


def write_weights(folder, config):
    """model.safetensors in bf16: small random numbers, the same million again and again."""
    tensors = {"model.embed_tokens.weight": [config["vocab_size"], config["hidden_size"]],
               "model.norm.weight": [config["hidden_size"]]}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, shape in linear_shapes(config).items():
            tensors[at + name + ".weight"] = list(shape)
            if name[-6:] in ("q_proj", "k_proj", "v_proj"):
                tensors[at + name + ".bias"] = [shape[0]]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[at + norm + ".weight"] = [config["hidden_size"]]
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    draw = random.Random(5)
    # A sign and a mantissa beside one exponent: ± 0.0078 … 0.0156.
    block = array("H", (draw.getrandbits(16) & 0x807F | 0x3C00 for _ in range(1 << 20))).tobytes()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, len(block)):
            file.write(block[: end - at])


def own_bytes(pid):
    """Memory that is a process's alone, and shared with those that compute with it; None where it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            lines = {line.split()[0]: line.split()[1] for line in file if line.startswith("Rss")}
        return 1024 * int(lines["RssAnon:"]), 1024 * int(lines["RssShmem:"])
    except (OSError, KeyError):
        return None


class Watch:
    """The memory of the run's trainer, moment by moment."""

    def __init__(self, place):
        self._place = place
        self._ended = threading.Event()
        self.seen = []  # (when, own, shared)
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self):
        pid = None
        while not self._ended.wait(0.003 if pid else 0.02):
            if pid is None:
                pid = next(iter(processes.trainers(self._place.mark)), None)
            elif (now := own_bytes(pid)) is not None:
                self.seen.append((time.monotonic(), *now))

    def end(self):
        self._ended.set()
        self._thread.join()


class Loaded:
    """Of a run: the most until the first step, the shared memory when that begins, and what was planned."""

    def __init__(self, most, shared, plan):
        self.most, self.shared, self.plan = most, shared, plan

    @property
    def trained(self):
        return 2 * self.plan["gradients"] + self.plan["optimizer"]  # parameters are in fp32, too


def planned(place, bin_folder, chosen):
    """Bytes of the trainer, by purpose."""
    done = subprocess.run([os.path.join(bin_folder, "troupe"), "plan", *(f"{key}={value}" for key, value in chosen.items()),
                           "output_dir=" + place.file("planned"), "--json"],
                          env=place.environment(), cwd=place.path, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        raise Fault("no plan: " + done.stderr.decode(errors="replace")[-400:])
    return next(plan["per_rank_bytes"] for plan in json.loads(done.stdout)["plans"] if plan["configured"])


def load(place, bin_folder, layers, code):
    folder = training.model(place, MODEL)
    config = {**training.MODELS[MODEL], "num_hidden_layers": layers}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    write_weights(folder, config)
    chosen = training.settings(place, MODEL, STEPS, per_device_train_batch_size=1)
    del chosen["train_from_scratch"]
    # Little else that grows with the layers: short rows, nothing kept for the backward pass.
    chosen.update({"max_steps": STEPS, "finetuning_type": "lora", "lora_rank": 1, "lora_target": "q_proj", "bf16": "true",
                   "cutoff_len": 16, "disable_gradient_checkpointing": "false", **KEYS[code]})
    plan = planned(place, bin_folder, chosen)
    run = Run(place, bin_folder, f"layers-{layers}", chosen)
    watch = Watch(place)
    try:
        run.start()
        run.wait_for_step(STEPS, TIMEOUT_S)
    finally:
        watch.end()
    run.finish(TIMEOUT_S)
    with open(os.path.join(run.folder, "steps.jsonl"), encoding="utf-8") as file:
        first_s = sum(json.loads(file.readline())["seconds"].values())
    begun = run.step_at[1] - first_s
    before = [(own + shared, shared) for at, own, shared in watch.seen if at <= begun]
    if len(before) < 20:
        raise Fault(f"the trainer was looked at {len(before)} times before its first step: too few to tell")
    return Loaded(max(before)[0], before[-1][1], plan)


def measure(figures, options):
    bin_folder = build("troupe")
    config = training.MODELS[MODEL]
    shapes = list(linear_shapes(config).values())
    with Workplace() as place:
        whole = load(place, bin_folder, options.layers, options.code)
        half = load(place, bin_folder, options.layers // 2, options.code)
    bits_of_code = 8 if options.code == "int8" else 4
    largest = max(outputs * inputs for outputs, inputs in shapes)
    tensor = largest * 4 + largest * bits_of_code // 8
    weights = (options.layers - options.layers // 2) * sum(outputs * inputs for outputs, inputs in shapes)
    bits = 8 * (whole.shared - whole.trained - half.shared + half.trained) / weights
    mib = 1 << 20
    name = f"{options.layers} layers of {training.NAMES[MODEL]} in {options.code}"
    figures.add(f"{name}: planned parameters", whole.plan["parameters"] / mib, "MiB")
    figures.add(f"{name}: planned in all", whole.plan["total"] / mib, "MiB")
    figures.add(f"{name}: the most before the first step", whole.most / mib, "MiB")
    figures.add("its largest quantised tensor, values in fp32 and codes", tensor / mib, "MiB")
    figures.add("a weight of a layer", bits, "bits")
    figures.bar(f"loading takes at most one tensor more than is planned ({(whole.most - whole.plan['total']) / mib:+.1f} MiB)",
                whole.most <= whole.plan["total"] + tensor)
    figures.bar(f"at most {BITS_BAR[options.code]} bits a weight ({bits:.3f})", bits <= BITS_BAR[options.code])


def parse(arguments):
    parser = script.parser("tools/bench quantized", __doc__)
    parser.add_argument("--code", choices=sorted(KEYS), default="nf4", help="what the weights are kept in (nf4)")
    parser.add_argument("--layers", type=int, default=24, help="of the larger model, at least 2 (24)")
    options = parser.parse_args(arguments)
    if options.layers < 2:
        parser.error("--layers: at least 2")
    return options


def main():
    options = parse(sys.argv[1:])
    return script.run("quantized", options, lambda figures: measure(figures, options))


if __name__ == "__main__":
    sys.exit(main())
