"""Text for masked-token training: lines of a file, as WordPiece tokens.

The tokens are held in memory; masks are drawn anew each time an example is
taken, and once for all, the same in every run, where examples are only looked
at. Examples are ordered and split by a hash of their id (of their text where
they have none), which does not move when a file grows.

keras-hub is imported when a text is loaded.
"""

import dataclasses
import gzip
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_dpadaptive.data.task import DataUnavailableError, Task

if TYPE_CHECKING:
    from tf_dpadaptive.plan import PrivacyPlan

_SUFFIXES = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
#: Of 256 values of the first byte of the hash, those that are test data.
_TEST_BYTES = 13
#: BERT's shares: masked tokens, of which so many are [MASK] or a random token.
_SELECTED, _MASKED, _RANDOM = 0.15, 0.8, 0.1
_FIXED_SEED = 20


@dataclasses.dataclass(frozen=True, eq=False)
class TextTask(Task):
    """Masked-token prediction: the label of a token is the token itself.

    Attributes:
        special: Ids of the tokens "pad", "cls", "sep" and "mask".

    `x_train` and `x_test` are int32 tokens, (n, sequence length): [CLS], text,
    [SEP], padding; `y_train` and `y_test` are the same arrays, `num_classes` is
    the size of the vocabulary. See `Task` for the others.
    """

    special: Mapping[str, int] = dataclasses.field(default_factory=dict)

    #: One example's predictions are many numbers: 32 are 70 MB at 128 tokens.
    test_batch_size = 32
    #: Accuracy would need the predictions of a whole batch in memory.
    metrics = ()

    @property
    def num_masked(self) -> int:
        """How many tokens of an example are masked at most."""
        return max(1, round(_SELECTED * self.input_shape[0]))

    def _label_shape(self, x: np.ndarray) -> tuple[int, ...]:
        return x.shape

    def batches(
        self, plan: "PrivacyPlan", steps: int | None = None
    ) -> tf.data.Dataset:
        """Returns training batches whose masks are drawn as they are taken.

        Args:
            plan: The plan that samples.
            steps: Updates in one pass; None: the plan's.
        """
        weights = np.ones(len(self.x_train), np.float32)
        dataset = plan.batches(
            self.x_train,
            self.y_train,
            weights,
            steps=steps,
            map_fn=self._masking(),
        )
        return dataset.prefetch(1)

    def examples(self, part: str, most: int | None = None) -> tuple[Any, ...]:
        """Returns (x, y, sample_weight) with masks that are always the same.

        Args:
            part: "train", "test" or "public".
            most: How many of the first examples; None: all.
        """
        tokens, targets = super().examples(part, most)
        masked = self._masking()

        def fixed(tokens: tf.Tensor, targets: tf.Tensor) -> Any:
            # Of this function's own graph; nothing global.
            tf.compat.v1.set_random_seed(_FIXED_SEED)
            return masked(tokens, targets, tf.constant(1.0))

        dataset = tf.data.Dataset.from_tensor_slices((tokens, targets))
        dataset = dataset.map(fixed).batch(len(tokens))
        return next(dataset.as_numpy_iterator())

    def _masking(self) -> Any:
        """The masking of one example; reads no other and keeps nothing."""
        from keras_hub.layers import MaskedLMMaskGenerator

        length, places = self.input_shape[0], self.num_masked
        generator = MaskedLMMaskGenerator(
            vocabulary_size=self.num_classes,
            mask_selection_rate=_SELECTED,
            mask_selection_length=places,
            mask_token_id=self.special["mask"],
            unselectable_token_ids=[
                self.special[name] for name in ("pad", "cls", "sep")
            ],
            mask_token_rate=_MASKED,
            random_token_rate=_RANDOM,
        )

        def masked(
            tokens: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor
        ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
            del targets  # The generator hands out the tokens that it hides.
            made = generator(tokens)
            positions, ids, counted = (
                tf.ensure_shape(made[f"mask_{name}"], [places])
                for name in ("positions", "ids", "weights")
            )
            x = {
                "token_ids": tf.ensure_shape(made["token_ids"], [length]),
                "segment_ids": tf.zeros_like(tokens),
                "padding_mask": tokens != self.special["pad"],
                "mask_positions": tf.cast(positions, tf.int32),
            }
            return x, ids, weight * tf.cast(counted, tf.float32)

        return masked


def load(config: Any) -> TextTask:
    """Loads the text that a config's `data` section names.

    Args:
        config: `path`: a file, or a folder of files: JSON lines (.jsonl), or
            plain text with one example a line (.txt), each also as .gz.
            `field`: the field of a JSON line that holds the text.
            `vocabulary`: a WordPiece file, or a keras-hub preset (its name or
            folder). `sequence_length`: tokens of an example, with [CLS] and
            [SEP]; longer texts are cut. `lowercase`: for a WordPiece file.

    Returns:
        All examples: 5 % of them (by hash) are test data.

    Raises:
        DataUnavailableError: If text or vocabulary can't be had. The text
            lists the ways to get them.
        ValueError: If a line does not hold what `field` names.
    """
    if config.sequence_length < 3:
        raise ValueError(
            "`data.sequence_length` must be >= 3: [CLS], a token, [SEP]. "
            f"Received: data.sequence_length={config.sequence_length}."
        )
    files = _files(config.path)
    tokenizer = _tokenizer(config.vocabulary, config.lowercase)
    keyed = sorted(
        (hashlib.sha256(key.encode()).digest(), text)
        for file in files
        for key, text in _texts(file, config.field)
    )
    special = {
        name: getattr(tokenizer, f"{name}_token_id")
        for name in ("pad", "cls", "sep", "mask")
    }
    tokens = _tokens(
        tokenizer, [t for _, t in keyed], config.sequence_length, special
    )
    tests = sum(digest[0] < _TEST_BYTES for digest, _ in keyed)
    if not 0 < tests < len(keyed):
        raise ValueError(
            "`data.path` must hold more examples: about one in 20 is test "
            f"data, by a hash. Received: data.path={config.path!r} with "
            f"{len(keyed)} examples, {tests} of them test data."
        )
    vocabulary = pathlib.Path(config.vocabulary)
    read = [*files, *([vocabulary] if vocabulary.is_file() else [])]
    names = ", ".join(file.name for file in files[:3])
    return TextTask(
        source=f"text of {names}{', …' if len(files) > 3 else ''}, cut to "
        f"{config.sequence_length} tokens of {vocabulary.name}, split by a "
        "hash",
        x_train=tokens[tests:],
        y_train=tokens[tests:],
        x_test=tokens[:tests],
        y_test=tokens[:tests],
        num_classes=tokenizer.vocabulary_size(),
        max_value=float(tokenizer.vocabulary_size() - 1),
        files={
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in read
        },
        special=special,
    )


def _files(path: str | None) -> list[pathlib.Path]:
    if path is None:
        raise DataUnavailableError(_advice("data.path=None names no text."))
    place = pathlib.Path(path)
    if place.is_file():
        return [place]
    found = []
    if place.is_dir():
        found = [f for f in place.iterdir() if f.name.endswith(_SUFFIXES)]
    if not found:
        raise DataUnavailableError(
            _advice(
                f"data.path={path!r} is neither a file nor a folder with "
                f"files that end in {', '.join(_SUFFIXES)}."
            )
        )
    return sorted(found)


def _texts(file: pathlib.Path, field: str) -> Iterator[tuple[str, str]]:
    """Yields (what the split goes by, text) of every line that is not empty."""
    opened = gzip.open if file.name.endswith(".gz") else open
    plain = ".txt" in file.suffixes
    with opened(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line:
                continue
            if plain:
                yield line, line
                continue
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get(field), str):
                holds = sorted(row) if isinstance(row, dict) else line[:40]
                raise ValueError(
                    "`data.field` must name the field of each JSON line that "
                    f"holds its text. Received: data.field={field!r}; line "
                    f"{number} of {file.name} holds {holds}."
                )
            yield str(row.get("id", row[field])), row[field]


def _tokenizer(vocabulary: str | None, lowercase: bool) -> Any:
    if vocabulary is None:
        raise DataUnavailableError(
            _advice("data.vocabulary=None names no WordPiece vocabulary.")
        )
    from keras_hub.tokenizers import BertTokenizer

    if pathlib.Path(vocabulary).is_file():
        return BertTokenizer(vocabulary=vocabulary, lowercase=lowercase)
    try:
        return BertTokenizer.from_preset(vocabulary)
    except Exception as error:
        # Whatever the downloader, the disk or a file in the folder raises.
        cause = str(error).strip().split("\n")[0]
        raise DataUnavailableError(
            _advice(
                f"data.vocabulary={vocabulary!r} is no file, and as a "
                f"keras-hub preset it could not be had "
                f"({type(error).__name__}: {cause})."
            )
        ) from None


def _tokens(
    tokenizer: Any,
    texts: Sequence[str],
    length: int,
    special: Mapping[str, int],
) -> np.ndarray:
    """Returns int32 (n, length): [CLS], tokens, [SEP], padding."""
    tokens = np.full((len(texts), length), special["pad"], np.int32)
    # In a graph, where the tokenizer works on many texts at once.
    pieces = tf.data.Dataset.from_tensor_slices(list(texts)).batch(1024)
    row = 0
    for piece in pieces.map(tokenizer).as_numpy_iterator():
        for ids in piece:
            kept = ids[: length - 2]
            tokens[row, 0] = special["cls"]
            tokens[row, 1 : 1 + len(kept)] = kept
            tokens[row, 1 + len(kept)] = special["sep"]
            row += 1
    return tokens


def _advice(cause: str) -> str:
    return f"""\
There is no text to train on.
Cause: {cause}
Ways to get it:
  1. Text of your own: --config.data.path=FILE_OR_FOLDER, JSON lines (.jsonl, \
.jsonl.gz; --config.data.field=NAME says which field holds the text) or plain \
text with one example a line (.txt, .txt.gz).
  2. Abstracts of arXiv: its metadata are on Kaggle ("arXiv Dataset", JSON \
lines, CC0), to be used with 1 and --config.data.field=abstract.
  3. A WordPiece vocabulary: --config.data.vocabulary=FILE, one token a line \
(the vocab.txt of any BERT).
  4. A machine with a network: --config.data.vocabulary=bert_tiny_en_uncased, \
or another keras-hub preset of BERT; a folder that holds one works offline.
  5. No text at all: python -m tf_dpadaptive.binaries.quickstart trains on \
the digits that come with scikit-learn."""
