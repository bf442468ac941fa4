"""Texts to tokenise and to train on, made here: the same ones every time."""

import random

# Of a document, about.
TEXT_BYTES = 4096


def english_like(size_wanted=3_000_000):
    """English by its looks: words whose counts fall as their rank rises, sentences, numbers, quotes, paragraphs."""
    dice = random.Random(20)
    onsets, vowels = "b c d f g h l m n p r s t w th sh st pr tr".split(), "a e i o u ea ou ee".split()
    endings = ["", "n", "r", "s", "t", "d", "l", "ng", "ly", "tion", "ed", "er"]
    words = list(dict.fromkeys("".join(dice.choice(onsets) + dice.choice(vowels) for _ in range(dice.choice((1, 1, 2, 3))))
                               + dice.choice(endings) for _ in range(60_000)))
    words[:0] = "the of and to in a is that for was on it's as with he be by at don't you've I'm".split()
    weights = [1 / (rank + 2.7) for rank in range(len(words))]
    chosen = iter(dice.choices(words, weights, k=900_000))
    out, size = [], 0
    while size < size_wanted:
        sentence = [next(chosen) for _ in range(dice.randint(4, 24))]
        sentence[0] = sentence[0].capitalize()
        if dice.random() < 0.2:
            sentence.insert(dice.randrange(len(sentence)), str(dice.randint(1, 99999)))
        if dice.random() < 0.15:
            sentence[-1] = f"\u201c{sentence[-1]}\u201d" if dice.random() < 0.5 else f'"{sentence[-1]}"'
        text = ", ".join((" ".join(sentence[:5]), " ".join(sentence[5:]))) if len(sentence) > 9 else " ".join(sentence)
        text += dice.choice(". . . . ? ! ; \u2013".split()) + ("\n\n" if dice.random() < 0.1 else " ")
        out.append(text)
        size += len(text)
    return "".join(out)


def documents(text):
    """Cut at line ends into texts of about TEXT_BYTES."""
    out, lines, size = [], [], 0
    for line in text.splitlines(keepends=True):
        lines.append(line)
        size += len(line)
        if size >= TEXT_BYTES:
            out.append("".join(lines))
            lines, size = [], 0
    return [*out, "".join(lines)] if lines else out
