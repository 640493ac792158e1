"""A few sentences and a vocabulary of their words, in files."""

import json

import numpy as np

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = "we show that the noise of a private step is small and its sum stays"


def write(folder, examples=200):
    """Writes text.jsonl and vocabulary.txt; returns their paths.

    Every second word of a sentence is the one before it: learnt quickly.
    """
    words = WORDS.split()
    rng = np.random.default_rng(7)
    lines = []
    for number in range(examples):
        chosen = rng.choice(words, int(rng.integers(4, 9)))
        text = " ".join(word for word in chosen for _ in range(2))
        lines.append(json.dumps({"id": f"e{number}", "abstract": text}))
    (folder / "text.jsonl").write_text("\n".join(lines) + "\n")
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join([*SPECIAL, *words]) + "\n")
    return str(folder / "text.jsonl"), str(vocabulary)
