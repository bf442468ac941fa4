#!/usr/bin/env python3
"""Texts to token ids with one thread, beside Hugging Face's tokenizers (Rust) in the same run, on the same texts
with the same tokenizer.json; the ids of both are compared, all of them.

    tools/bench tokenizer [--json] [--repeats N] [--data DIR]

Tokenizers and English texts of DIR (../shared/data) where it is there; besides, and without it, a text that is made
here and tokenizers learned from it. A pass is timed after loading, with nothing remembered of the texts ("first"),
and once more ("again"). Texts are of about 4 KiB, as documents are. One text is there for its characters alone:
ids are compared, speed is not measured. The peer comes from PyPI (tools/peers/requirements.txt, which transformers
brings it with); that it cannot be had is a failure.
"""

import json
import os
import random
import sys

from harness import peers, script
from harness.commands import output_of
from harness.figures import median
from harness.texts import documents, english_like
from harness.workplace import ROOT, Workplace, build

BAR_MB_PER_S = 5
KINDS = {  # of tokenizers, by the folder in DIR
    "gpt2": "tok_gpt2", "llama3": "tok_llama3", "qwen2": "tok_qwen2", "digits": "smollm2-135m",
    "sentencepiece": "stories260K/hf",
}
LEARNED = ("gpt2", "llama3", "qwen2", "sentencepiece", "unigram", "wordpiece")
ENGLISH = ("wikitext2/valid.txt", "wikitext2/test.txt", "tinyshakespeare/input.txt")
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
RUN_S = 200


def awkward_texts():
    """Unicode of all planes, white space in runs, emoji, marks, contractions of all cases, one very long word."""
    dice = random.Random(21)
    atoms = ["'s", "'LL", "'re", "'\u017f", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "e\u0301", "\u0301",
             "\u212b", "\u1100\u1161\u11a8", "\U0001f469\u200d\U0001f680", "\U0001f1e9\U0001f1ea", "\ufe0f", "1234567", "\u0663",
             "\u00bd", "\u00b2", "<", "<|", "|>", "\u2581", "\ufffd", "\x00", "\x1c", "a", "The", "..."]
    texts = ["".join(dice.choices(atoms, k=dice.randint(1, 80))) for _ in range(3_000)]
    # Assigned long ago, so that libraries of different years agree on what they are.
    blocks = [(0x80, 0x250), (0x370, 0x378), (0x400, 0x480), (0x5d0, 0x5eb), (0x620, 0x640), (0x905, 0x93a), (0xe01, 0xe31),
              (0x1100, 0x1112), (0x2010, 0x2060), (0x2190, 0x21ff), (0x3041, 0x3097), (0x4e00, 0x5200), (0xac00, 0xad00),
              (0xff01, 0xff5f), (0x1f600, 0x1f640), (0x1d400, 0x1d440)]
    for begin, end in blocks:
        letters = [chr(code) for code in range(begin, end)]
        texts.append(" ".join("".join(dice.choices(letters, k=dice.randint(1, 9))) for _ in range(200)))
        texts.append("".join(letters))
    return [*texts, "a" * 20_000, "ab" * 20_000, " " * 5_000, "\n" * 5_000, "1" * 5_000, ""]


def texts_of(options):
    """(name, texts, whether speed is measured)"""
    out = []
    for name in ENGLISH:
        path = os.path.join(options.data, name)
        if os.path.exists(path):
            with open(path, encoding="utf-8", newline="") as file:
                out.append((name.split("/")[0], documents(file.read())))
    joined = {}
    for name, texts in out:
        joined.setdefault(name, []).extend(texts)
    return [*((name, texts, True) for name, texts in joined.items()), ("made here", documents(english_like()), True),
            ("awkward", awkward_texts(), False)]


def same_ids(ours, theirs):
    with open(ours, "rb") as one, open(theirs, "rb") as other:
        return one.read() == other.read()


def measure(figures, place, python, bin_folder, options):
    peer = [python, os.path.join(peers.FOLDER, "tokenizer_peer.py")]
    texts = []
    for i, (name, of_it, timed) in enumerate(texts_of(options)):
        path = place.file(f"texts-{i}.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(of_it, file, ensure_ascii=False)
        texts.append((name, path, sum(len(text.encode()) for text in of_it) / 1e6, timed))
    learn_from = next(path for name, path, _, _ in texts if name == "made here")
    tokenizers = {kind: os.path.join(options.data, folder) for kind, folder in KINDS.items()
                  if os.path.exists(os.path.join(options.data, folder, "tokenizer.json"))}
    for kind in LEARNED:
        tokenizers[f"{kind}, learned here"] = place.file(kind)
        output_of([*peer, "train", kind, learn_from, place.file(kind)], "learning a tokenizer", RUN_S)
    slowest = None
    figures.note(f"{'':<54}{'MB/s':>8}{'HF':>8}{'':>9}   {'again':>8}{'HF':>8}   ids")
    for kind, folder in tokenizers.items():
        for name, path, megabytes, timed in texts:
            repeats = str(options.repeats if timed else 1)
            ids = place.file("ids"), place.file("their-ids")
            ours = json.loads(output_of([f"{bin_folder}/bench_tokenizer", folder, path, ids[0], repeats],
                                        "bench_tokenizer", RUN_S))
            theirs = json.loads(output_of([*peer, "run", folder, path, ids[1], repeats], "tokenizers", RUN_S,
                                          {**os.environ, **ONE_THREAD}))
            equal = same_ids(*ids)
            if not equal or not timed:
                figures.bar(f"{kind}: all ids of the text '{name}' equal", equal)
            if not timed:
                continue
            rates = {key: (megabytes / median(ours[key]), megabytes / median(theirs[key])) for key in ("first", "again")}
            mine, peers_rate = rates["first"]
            what = f"{kind}: {name} ({megabytes:.1f} MB)"
            if options.json:
                for key, (rate, other) in rates.items():
                    figures.add(f"{what}, {key}", rate, "MB/s")
                    figures.add(f"{what}, {key}: HF tokenizers", other, "MB/s")
            figures.note(f"{what:<54}{mine:>8.1f}{peers_rate:>8.1f}{mine / peers_rate:>7.1f} x   "
                         f"{rates['again'][0]:>8.1f}{rates['again'][1]:>8.1f}   {'equal' if equal else 'DIFFERENT'}")
            slowest = min(mine, slowest or mine)
        figures.note(f"{kind}: loading takes {median(ours['load']) * 1e3:.0f} ms, theirs {median(theirs['load']) * 1e3:.0f} ms")
    figures.bar(f"one thread, English text, the slowest of all: {slowest:.1f} MB/s, at least {BAR_MB_PER_S}",
                slowest >= BAR_MB_PER_S)


def versions(python):
    asked = [python, "-c", "import tokenizers; print(tokenizers.__version__)"]
    return "tokenizers " + output_of(asked, "asking for the version", RUN_S).strip()


def main():
    parser = script.parser("tools/bench tokenizer", __doc__)
    parser.add_argument("--repeats", type=int, default=5, help="passes of each kind (5)")
    parser.add_argument("--data", default=os.path.join(ROOT, "../shared/data"), help="where tokenizers and texts lie")
    options = parser.parse_args()

    def compare(figures):
        python = peers.python(figures)
        bin_folder = build("bench_tokenizer")
        with Workplace() as place:
            figures.note(f"one thread each; {versions(python)}")
            measure(figures, place, python, bin_folder, options)

    return script.run("tokenizer", options, compare)


if __name__ == "__main__":
    sys.exit(main())
