"""PyTorch on the same machine as gpu_check, for its checks peer/…: prints one line of JSON.

    peer.py rate MODEL MODE DEVICE ROWS LENGTH WARM_UP STEPS
    peer.py losses FOLDER DEVICE

MODEL: a folder with a config.json. MODE: eager or compiled. DEVICE: cuda or cpu. FOLDER: what gpu_check
left there: models.json, which says of each model its configuration, its tensors and its tokens, and
parameters.bin.

The models are Hugging Face's where transformers is there, else this file's own in plain PyTorch, with
the same names; "by" says which. Where there is no PyTorch, or it sees no GPU and DEVICE is one, the line
is {"unavailable": why}.
"""

import json
import os
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def unavailable(why):
    print(json.dumps({"unavailable": f"{sys.executable}: {why}"}), flush=True)
    raise SystemExit(0)


try:
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    unavailable(str(missing))
try:
    import transformers
except ImportError:
    transformers = None

RATE = 1e-5


def by():
    if transformers:
        return f"Hugging Face transformers {transformers.__version__}, PyTorch {torch.__version__}"
    return f"plain PyTorch {torch.__version__} (there is no transformers)"


# --- models in plain PyTorch


def rotated(x, cosine, sine):
    low, high = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-high, low), dim=-1) * sine


class LlamaBlock(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.heads = c["hidden_size"], c["num_attention_heads"]
        self.key_heads = c.get("num_key_value_heads", self.heads)
        self.width = c.get("head_dim") or hidden // self.heads
        biases, epsilon = c["model_type"] == "qwen2", c.get("rms_norm_eps", 1e-6)
        linear = torch.nn.Linear
        self.self_attn = torch.nn.ModuleDict({
            "q_proj": linear(hidden, self.heads * self.width, biases),
            "k_proj": linear(hidden, self.key_heads * self.width, biases),
            "v_proj": linear(hidden, self.key_heads * self.width, biases),
            "o_proj": linear(self.heads * self.width, hidden, False)})
        # Heads' norms.
        norms = ("q_norm", "k_norm") if c["model_type"] == "qwen3" else ()
        self.self_attn.update({name: torch.nn.RMSNorm(self.width, epsilon) for name in norms})
        inner = c["intermediate_size"]
        self.mlp = torch.nn.ModuleDict({"gate_proj": linear(hidden, inner, False),
                                        "up_proj": linear(hidden, inner, False),
                                        "down_proj": linear(inner, hidden, False)})
        self.input_layernorm = torch.nn.RMSNorm(hidden, epsilon)
        self.post_attention_layernorm = torch.nn.RMSNorm(hidden, epsilon)

    def forward(self, x, cosine, sine):
        rows, length, _ = x.shape
        y, attention = self.input_layernorm(x), self.self_attn

        def heads(name, count):
            part = attention[name + "_proj"](y).view(rows, length, count, self.width)
            return (attention[name + "_norm"](part) if name + "_norm" in attention else part).transpose(1, 2)

        q = rotated(heads("q", self.heads), cosine, sine)
        k = rotated(heads("k", self.key_heads), cosine, sine)
        y = F.scaled_dot_product_attention(q, k, heads("v", self.key_heads), is_causal=True,
                                           enable_gqa=self.heads != self.key_heads)
        x = x + attention["o_proj"](y.transpose(1, 2).reshape(rows, length, -1))
        y, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))


class Llama(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.width = c["hidden_size"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        self.base = c.get("rope_theta", 10000.0)
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(c["vocab_size"], hidden)
        self.model.layers = torch.nn.ModuleList(LlamaBlock(c) for _ in range(c["num_hidden_layers"]))
        self.model.norm = torch.nn.RMSNorm(hidden, c.get("rms_norm_eps", 1e-6))
        self.lm_head = torch.nn.Linear(hidden, c["vocab_size"], False)
        if c.get("tie_word_embeddings", False):
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids):
        half = torch.arange(0, self.width, 2, device=ids.device, dtype=torch.float32) / self.width
        angles = torch.outer(torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32), self.base ** -half)
        angles = torch.cat((angles, angles), dim=-1)
        x = self.model.embed_tokens(ids)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, cosine, sine)
        return self.lm_head(self.model.norm(x))


class Transposed(torch.nn.Module):
    """A linear layer with its weight as GPT-2 has it: (in, out)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(inputs, outputs))
        self.bias = torch.nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return F.linear(x, self.weight.t(), self.bias)


class Gpt2Block(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.heads = c["n_embd"], c["n_head"]
        inner, epsilon = c.get("n_inner") or 4 * hidden, c.get("layer_norm_epsilon", 1e-5)
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(hidden, epsilon), torch.nn.LayerNorm(hidden, epsilon)
        self.attn = torch.nn.ModuleDict({"c_attn": Transposed(hidden, 3 * hidden),
                                         "c_proj": Transposed(hidden, hidden)})
        self.mlp = torch.nn.ModuleDict({"c_fc": Transposed(hidden, inner), "c_proj": Transposed(inner, hidden)})

    def forward(self, x):
        rows, length, hidden = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(rows, length, hidden))
        return x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt2(torch.nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden = c["n_embd"]
        self.transformer = torch.nn.Module()
        self.transformer.wte = torch.nn.Embedding(c["vocab_size"], hidden)
        self.transformer.wpe = torch.nn.Embedding(c["n_positions"], hidden)
        self.transformer.h = torch.nn.ModuleList(Gpt2Block(c) for _ in range(c["n_layer"]))
        self.transformer.ln_f = torch.nn.LayerNorm(hidden, c.get("layer_norm_epsilon", 1e-5))
        self.lm_head = torch.nn.Linear(hidden, c["vocab_size"], False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


def make_model(config, device):
    with torch.device(device):
        if not transformers:
            model = (Gpt2 if config["model_type"] == "gpt2" else Llama)(config)
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    torch.nn.init.normal_(parameter, std=config.get("initializer_range", 0.02))
            return model
        made = transformers.AutoConfig.for_model(**config)
        made.use_cache = False
        # As transformers does by default: the fastest that it has without further packages.
        return transformers.AutoModelForCausalLM.from_config(made, attn_implementation="sdpa").float()


def loss_of(model, ids):
    if transformers:
        return model(input_ids=ids, labels=ids).loss
    logits = model(ids)[:, :-1].float()
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


# --- what is measured


def rate(folder, mode, device, rows, length, warm_up, steps):
    """Training as transformers' Trainer does it with bf16: fp32 parameters, autocast, fused AdamW,
    gradients clipped to 1, each step's loss read; nothing is computed again in the backward pass."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    torch.manual_seed(7)
    model = make_model(config, device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    forward = model
    if mode == "compiled":
        # The CPU's is for rehearsals: what the compiler makes is no matter there.
        forward = torch.compile(model, backend="inductor" if device == "cuda" else "eager")
    seconds, losses = [], []
    for step in range(warm_up + steps):
        generator = torch.Generator().manual_seed(step)
        ids = torch.randint(0, config["vocab_size"], (rows, length), generator=generator).to(device)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_of(forward, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    result = {"by": by(), "tokens_per_s": rows * length / statistics.median(seconds[warm_up:]),
              "first_step_s": seconds[0], "loss": losses[-1]}
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        # What its allocator has taken stays taken.
        result |= {"in_use_bytes": total - free, "allocated_bytes": torch.cuda.max_memory_allocated()}
    return result


def losses(folder, device):
    """Loss and norm of the gradients in fp32, of each model with the parameters that it is given."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with open(os.path.join(folder, "models.json"), encoding="utf-8") as file:
        models = json.load(file)
    with open(os.path.join(folder, "parameters.bin"), "rb") as file:
        numbers = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
    found = []
    for told in models:
        model = make_model(told["config"], device).eval()
        there = dict(model.named_parameters())
        if sorted(there) != sorted(tensor["name"] for tensor in told["tensors"]):
            missing = set(there) ^ {tensor["name"] for tensor in told["tensors"]}
            raise SystemExit(f"{told['name']}: parameters of one side only: {sorted(missing)}")
        with torch.no_grad():
            for tensor in told["tensors"]:
                values = numbers[tensor["at"]:][:there[tensor["name"]].numel()]
                if list(there[tensor["name"]].shape) != tensor["shape"]:
                    raise SystemExit(f"{told['name']}: {tensor['name']} has another shape")
                there[tensor["name"]].copy_(values.view(tensor["shape"]))
        ids = torch.tensor(told["ids"], dtype=torch.int64).view(told["rows"], -1).to(device)
        loss = loss_of(model, ids)
        loss.backward()
        squares = sum(float(p.grad.double().square().sum()) for p in model.parameters())
        found.append({"name": told["name"], "loss": loss.item(), "norm": squares ** 0.5})
    return {"by": by(), "models": found}


def main(arguments):
    what, *rest = arguments
    if "cuda" in rest and not torch.cuda.is_available():
        unavailable(f"PyTorch {torch.__version__} sees no GPU")
    if what == "rate":
        folder, mode, device, *numbers = rest
        result = rate(folder, mode, device, *map(int, numbers))
    else:
        result = losses(*rest)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
