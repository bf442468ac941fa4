"""Hugging Face's tokenizers, for `tools/bench tokenizer`. RAYON_NUM_THREADS and TOKENIZERS_PARALLELISM are the
caller's to set.

    tokenizer_peer.py run TOKENIZER TEXTS.json IDS REPEATS   as tools/bench_tokenizer.cpp
    tokenizer_peer.py train KIND TEXTS.json FOLDER           a tokenizer.json of that kind, learned from the texts
"""

import array
import json
import os
import sys
import time

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 16_000
GPT2 = None  # what ByteLevel does by itself
_MODERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
EXPRESSIONS = {"gpt2": GPT2, "llama3": _MODERN % r"\p{N}{1,3}", "qwen2": _MODERN % r"\p{N}"}


def read_texts(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def timed_pass(tokenizer, texts):
    # The fastest way that the library has: no offsets, no conversion of ids to Python's numbers.
    begin = time.monotonic()
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return time.monotonic() - begin, encodings


def run(folder, texts_path, ids_path, repeats):
    texts = read_texts(texts_path)
    figures = {"load": [], "first": [], "again": []}
    for _ in range(repeats):
        begin = time.monotonic()
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        figures["load"].append(time.monotonic() - begin)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        seconds, _ = timed_pass(tokenizer, texts)
        figures["first"].append(seconds)
        seconds, encodings = timed_pass(tokenizer, texts)
        figures["again"].append(seconds)
    with open(ids_path, "wb") as file:
        for encoding in encodings:
            ids = encoding.ids
            array.array("i", [len(ids), *ids]).tofile(file)
    print(json.dumps(figures))


def byte_level(kind):
    tokenizer = Tokenizer(models.BPE())
    if kind == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(EXPRESSIONS[kind]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def sentencepiece():
    """As Llama 2's: whole texts, spaces written as U+2581, bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    # For training alone: it counts words.
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return tokenizer, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(vocab_size=VOCABULARY, special_tokens=["<unk>"], unk_token="<unk>",
                                              show_progress=False)


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=["[UNK]"], show_progress=False)


def train(kind, texts_path, folder):
    kinds = {"sentencepiece": sentencepiece, "unigram": unigram, "wordpiece": word_piece}
    tokenizer, trainer = kinds[kind]() if kind in kinds else byte_level(kind)
    tokenizer.train_from_iterator(read_texts(texts_path), trainer)
    content = json.loads(tokenizer.to_str())
    if kind == "sentencepiece":
        content["pre_tokenizer"] = None
        content["added_tokens"] = content["added_tokens"][:3]  # bytes are no tokens to look for in a text
        content["decoder"] = {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(*sys.argv[2:5], int(sys.argv[5]))
    else:
        train(*sys.argv[2:5])
