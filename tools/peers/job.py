"""What the peers' jobs have in common. One thread a rank."""

import json
import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402  after the number of threads
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

SEQUENCES, LENGTH, VOCABULARY = 4, 256, 32000


def make_model():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6,
                    num_key_value_heads=6, vocab_size=VOCABULARY, max_position_embeddings=LENGTH,
                    tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa"))


def batch(step, rank):
    """The same at every attempt: a recovered run trains on what an undisturbed one does."""
    generator = torch.Generator().manual_seed(1_000_003 * step + rank)
    return torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH), generator=generator)


class Training:
    """model: as it is trained, wrapped; `wrapped` makes that of the plain one, once it is loaded."""

    def __init__(self, rank, events, wrapped, checkpoint=None):
        self.rank = rank
        self._events = open(events, "a", buffering=1, encoding="utf-8")
        self.plain = make_model()
        self.optimizer = torch.optim.AdamW(self.plain.parameters(), lr=3e-4)
        self.step = 0
        if checkpoint:
            state = torch.load(checkpoint, map_location="cpu", weights_only=True)
            self.plain.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]
        self.model = wrapped(self.plain)

    def run(self, steps, save_every, save):
        """Up to `steps`; `save()` on every rank after every `save_every` of them."""
        while self.step < steps:
            tokens = batch(self.step, self.rank)
            self.optimizer.zero_grad()
            self.model(input_ids=tokens, labels=tokens).loss.backward()
            self.optimizer.step()
            self.step += 1
            self._events.write(json.dumps({"rank": self.rank, "pid": os.getpid(), "step": self.step}) + "\n")
            if self.step % save_every == 0:
                save(self)

    def write(self, path):
        """The checkpoint as one file, there whole or not at all."""
        state = {"model": self.plain.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)
