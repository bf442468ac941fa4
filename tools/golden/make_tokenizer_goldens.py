#!/usr/bin/env python3
"""Makes tests/golden/tokenizer: small tokenizers of every kind, and what Hugging Face's tokenizers, transformers and
SentencePiece say of texts with them.

    python3 tools/golden/make_tokenizer_goldens.py tests/golden/tokenizer

Needs tokenizers, sentencepiece and transformers 5. The texts are random words, spaces and characters of many kinds.
texts.json has them; NAME.json is a tokenizer.json, NAME.model a tokenizer.model with NAME.config.json beside it;
NAME.golden.json has for each text its ids without special tokens (`ids`), what they decode to (`text`), and where it
differs, the ids with special tokens of the first text (`special`).
"""

import io
import json
import os
import random
import shutil
import sys
import tempfile

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

DICE = random.Random(5)
SYLLABLES = ["ba", "ko", "mi", "tel", "ran", "su", "é", "ñi", "ло", "ми", "水", "日", "lu", "dor", "ish", "ß", "ο"]
WORDS = ["".join(DICE.choices(SYLLABLES, k=DICE.randint(1, 4))) for _ in range(60)]
CORPUS = [" ".join(DICE.choices(WORDS, k=12)).capitalize() + DICE.choice([".", "!", ", 12", "?"]) for _ in range(300)]
ODD = ["  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "e\u0301", "\u0301", "ﬁ", "\u212b", "½", "²", "İ", "\u200b", "\ufeff",
       "\x01", "\x7f", "\x0b", "\x85", "\u0378", "▁", "<0x41>", "<s>", "<x>", "<x", "can't", "do not", "a.b", "…", "«", "ſ", "水日", "🚀", "👩\u200d🚀",
       "Ⓐ", "\u0bb5\u0bbf", "123", "_", "x_y", "\ufffd", "Ж", "ǅ", "<lang>", "[UNK]", "[MASK]", "\u1100\u1161", "---"]


def texts():
    out = ["", " ", "a", "Hello world", WORDS[0] + " " + WORDS[1]]
    for _ in range(55):
        atoms = DICE.choices(WORDS + [" "] * 30 + ODD, k=DICE.randint(1, 14))
        out.append(DICE.choice(["", " "]).join(atoms))
    return out


def charsmap_rules(path):
    rules = {"ﬁ": "fi", "\u212b": "\u00c5", "½": "1/2", "\u3000": " ", "\u00a0": " ", "\t": " ", "\r": " ", "\n": " ", "\r\n": " ",
             "\u200b": "", "e\u0301": "é", "A": "a", "\x01": ""}
    with open(path, "w") as file:
        for text, becomes in rules.items():
            file.write(" ".join(f"{ord(c):X}" for c in text) + "\t" + " ".join(f"{ord(c):X}" for c in becomes) + "\n")


def learned(name, work, **options):
    """A tokenizer.model of these options."""
    model = io.BytesIO()
    defaults = dict(vocab_size=190, character_coverage=0.995, num_threads=1, minloglevel=2, seed_sentencepiece_size=2000)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, **(defaults | options))
    folder = os.path.join(work, name)
    os.makedirs(folder)
    with open(os.path.join(folder, "tokenizer.model"), "wb") as file:
        file.write(model.getvalue())
    return folder


def unigram(bytes_too):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>"))
    root = json.loads(tokenizer.to_str())
    vocab = root["model"]["vocab"]
    if bytes_too:
        vocab += [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
        root["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(root))


def word_piece(**options):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", **options))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def tokenizer_files(charsmap):
    n, p = normalizers, pre_tokenizers
    t5 = unigram(False)
    t5.normalizer = n.Sequence([n.Precompiled(charsmap), n.Replace(Regex(" {2,}"), " ")])
    t5.pre_tokenizer = p.Metaspace()
    t5.decoder = decoders.Metaspace()
    t5.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 2)])
    yield "unigram_t5", t5
    first = unigram(True)
    first.normalizer = n.Sequence([n.Nmt(), n.NFKC(), n.Strip()])
    first.pre_tokenizer = p.Metaspace(prepend_scheme="first")
    first.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="first"), decoders.ByteFallback(), decoders.Fuse()])
    first.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    first.add_tokens([AddedToken("<lang>", single_word=True), AddedToken("<x>", lstrip=True, rstrip=True),
                      AddedToken("Ж", normalized=True)])
    yield "unigram_bytes", first
    whole = unigram(False)
    whole.normalizer = n.Lowercase()
    whole.pre_tokenizer = p.Sequence([p.WhitespaceSplit(), p.Metaspace(prepend_scheme="never", split=False)])
    yield "unigram_whole", whole
    bert = word_piece()
    bert.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    yield "bert", bert
    cased = word_piece(max_input_chars_per_word=6)
    cased.normalizer = n.BertNormalizer(lowercase=False, handle_chinese_chars=False)
    cased.pre_tokenizer = p.Whitespace()
    cased.decoder = decoders.WordPiece(cleanup=False)
    yield "bert_cased", cased
    stripped = word_piece()
    stripped.normalizer = n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase()])
    stripped.pre_tokenizer = p.Sequence([p.WhitespaceSplit(), p.Punctuation("merged_with_previous"),
                                         p.Digits(individual_digits=True)])
    yield "word_piece_stripped", stripped


def check_against_sentencepiece(folder, tokenizer, name):
    """How many texts without added tokens SentencePiece itself gives the same ids."""
    own = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
    plain = [text for text in TEXTS if "<" not in text]
    same = sum(own.encode(text) == tokenizer.encode(text, add_special_tokens=False) for text in plain)
    print(f"{name}: {same} of {len(plain)} texts as SentencePiece has them")


def piece_models(work):
    rules = os.path.join(work, "rules.tsv")
    charsmap_rules(rules)
    none = dict(normalization_rule_name="identity", remove_extra_whitespaces=False)
    llama = learned("llama", work, model_type="bpe", vocab_size=430, byte_fallback=True, **none)
    more = {"added_tokens_decoder": {"430": {"content": "<x>", "special": True, "normalized": False, "rstrip": True},
                                     "431": {"content": "<lang>", "special": False, "normalized": False}}}
    yield "llama", llama, {"add_bos_token": True, "add_eos_token": True, "legacy": True, **more}, PreTrainedTokenizerFast
    yield "llama_new", llama, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "legacy": False, **more}, LlamaTokenizer
    user = dict(user_defined_symbols=["<lang>", "▁▁", "---", "ba"], control_symbols=["<x>"])
    yield ("gemma", learned("gemma", work, model_type="bpe", vocab_size=450, byte_fallback=True, add_dummy_prefix=False,
                            **user, **none), {"add_bos_token": False}, PreTrainedTokenizerFast)
    yield ("bpe_rules", learned("bpe_rules", work, model_type="bpe", normalization_rule_tsv=rules, **user),
           {"add_bos_token": False}, PreTrainedTokenizerFast)
    yield ("spm_unigram", learned("spm_unigram", work, model_type="unigram", vocab_size=100, normalization_rule_tsv=rules),
           {"add_bos_token": False}, PreTrainedTokenizerFast)
    yield ("spm_unigram_bytes", learned("spm_unigram_bytes", work, model_type="unigram", vocab_size=350, byte_fallback=True,
                                        control_symbols=["<x>"], **none), {"add_bos_token": False}, PreTrainedTokenizerFast)


def write_golden(out, name, encode, encode_special, decode):
    rows = [encode(text) for text in TEXTS]
    golden = {"ids": rows, "text": [decode(ids) for ids in rows], "special": encode_special(TEXTS[4])}
    with open(os.path.join(out, name + ".golden.json"), "w") as file:
        json.dump(golden, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")


def main(out):
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(out, "texts.json"), "w") as file:
        json.dump(TEXTS, file, ensure_ascii=True, indent=0)
        file.write("\n")
    with tempfile.TemporaryDirectory() as work:
        charsmap = None
        for name, folder, config, kind in piece_models(work):
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
                json.dump({"tokenizer_class": kind.__name__} | config, file)
            tokenizer = kind.from_pretrained(folder)
            check_against_sentencepiece(folder, tokenizer, name)
            shutil.copy(os.path.join(folder, "tokenizer.model"), os.path.join(out, name + ".model"))
            shutil.copy(os.path.join(folder, "tokenizer_config.json"), os.path.join(out, name + ".config.json"))
            write_golden(out, name, lambda text: tokenizer.encode(text, add_special_tokens=False), tokenizer.encode,
                         lambda ids: tokenizer.decode(ids, clean_up_tokenization_spaces=False))
            if name == "spm_unigram":
                from sentencepiece import sentencepiece_model_pb2
                proto = sentencepiece_model_pb2.ModelProto()
                with open(os.path.join(folder, "tokenizer.model"), "rb") as file:
                    proto.ParseFromString(file.read())
                charsmap = proto.normalizer_spec.precompiled_charsmap
        for name, tokenizer in tokenizer_files(charsmap):
            with open(os.path.join(out, name + ".json"), "w") as file:
                file.write(tokenizer.to_str())
            write_golden(out, name, lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
                         lambda text: tokenizer.encode(text).ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=False))


TEXTS = texts()
if __name__ == "__main__":
    main(sys.argv[1])
