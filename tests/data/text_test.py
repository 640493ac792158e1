"""Tests of text: reading, splitting, tokens, masks. Nothing is downloaded."""

import gzip
import hashlib
import json

import numpy as np
import pytest

import tf_dpadaptive as dpa
from tests.data import small_text
from tf_dpadaptive.data import sampling, tasks, text
from tf_dpadaptive.experiments import sections

PAD, UNK, CLS, SEP, MASK = range(5)


@pytest.fixture
def files(tmp_path):
    return small_text.write(tmp_path)


def section(files, **values):
    path, vocabulary = files
    given = {"path": path, "vocabulary": vocabulary, "field": "abstract"}
    return sections.text(**given | {"sequence_length": 12} | values)


def test_tokens_begin_and_end_and_are_cut(files):
    task = tasks.load(section(files))
    tokens = np.concatenate([task.x_train, task.x_test])
    assert tokens.shape == (200, 12)
    assert tokens.dtype == np.int32
    assert (tokens[:, 0] == CLS).all()
    assert ((tokens == SEP).sum(1) == 1).all()
    for row in tokens:
        end = list(row).index(SEP)
        assert (row[end + 1 :] == PAD).all()
        assert (row[1:end] > MASK).all()  # Every word is in the vocabulary.
    assert (tokens[:, -1] == SEP).any()  # Some texts are longer than 12.
    assert (tokens[:, -1] == PAD).any()
    assert task.num_classes == 5 + len(small_text.WORDS.split())


def test_split_goes_by_a_hash_of_the_id(files):
    task = tasks.load(section(files))
    test = [
        number
        for number in range(200)
        if hashlib.sha256(f"e{number}".encode()).digest()[0] < 13
    ]
    assert len(task.x_test) == len(test)
    assert len(task.x_train) == 200 - len(test)
    path, _ = files
    with open(path) as lines:
        rows = [json.loads(line) for line in lines]
    # The same whatever the order of the lines.
    with open(path, "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in reversed(rows))
    again = tasks.load(section(files))
    np.testing.assert_array_equal(again.x_train, task.x_train)
    np.testing.assert_array_equal(again.x_test, task.x_test)


def test_plain_and_packed_text_are_the_same_examples(files, tmp_path):
    path, vocabulary = files
    with open(path) as lines:
        rows = [json.loads(line)["abstract"] for line in lines]
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(rows[:90]))
    with gzip.open(folder / "b.jsonl.gz", "wt") as file:
        for row in rows[90:]:
            file.write(json.dumps({"abstract": row}) + "\n")
    plain = tasks.load(section((str(folder), vocabulary)))
    assert set(plain.files) == {"a.txt", "b.jsonl.gz", "vocabulary.txt"}
    named = tasks.load(section(files))
    both = [
        sorted(np.concatenate([t.x_train, t.x_test]).tolist())
        for t in (plain, named)
    ]
    assert both[0] == both[1]


def test_source_says_what_was_read(files):
    task = tasks.load(section(files, num_train=50, num_test=3))
    assert "text.jsonl" in task.source
    assert "12 tokens of vocabulary.txt" in task.source
    assert "first 50 / 3 examples" in task.source
    with open(files[0], "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    assert task.files["text.jsonl"] == digest


def check_masked(x, y, weight, tokens, places):
    """One example: masks hide tokens, and nothing else is touched."""
    positions = x["mask_positions"][weight > 0]
    assert len(set(positions)) == len(positions)
    np.testing.assert_array_equal(y[weight > 0], tokens[positions])
    assert (tokens[positions] > MASK).all()  # Never padding, [CLS], [SEP].
    rest = np.setdiff1d(np.arange(len(tokens)), positions)
    np.testing.assert_array_equal(x["token_ids"][rest], tokens[rest])
    np.testing.assert_array_equal(x["padding_mask"], tokens != PAD)
    assert (x["segment_ids"] == 0).all()
    assert len(y) == places
    return len(positions)


def test_batches_are_the_plans_and_masks_are_fresh(files):
    task = tasks.load(section(files, num_train=64, sequence_length=16))
    plan = dpa.PrivacyPlan(1.0, 64, num_examples=64, num_steps=9)
    dataset = task.batches(plan, steps=3)
    assert sampling.origin(dataset) is not None
    assert int(dataset.cardinality()) == 3
    taken = []
    rows = {tuple(tokens): number for number, tokens in enumerate(task.x_train)}
    for batch in dataset.as_numpy_iterator():
        real = ~batch.padding
        assert real.sum() == 64  # q = 1: everybody takes part.
        masked = 0
        for i in np.flatnonzero(real):
            x = {key: part[i] for key, part in batch.x.items()}
            tokens = x["token_ids"].copy()
            held = batch.sample_weight[i] > 0
            tokens[x["mask_positions"][held]] = batch.y[i][held]
            assert tuple(tokens) in rows
            masked += check_masked(
                x, batch.y[i], batch.sample_weight[i], tokens, task.num_masked
            )
        assert masked > 0
        for leaf in (*batch.x.values(), batch.y, batch.sample_weight):
            assert not leaf[~real].any()
        taken.append(batch.x["token_ids"][real])
    # 64 masks drawn alike twice: odds below 1e-60.
    assert (taken[0] != taken[1]).any()
    assert (taken[1] != taken[2]).any()


def test_shares_of_masked_tokens_are_those_of_bert(files):
    task = tasks.load(section(files, sequence_length=60))
    plan = dpa.PrivacyPlan(1.0, 160, num_examples=160, num_steps=99)
    task = task.head(160)
    kinds = np.zeros(3, int)
    for batch in task.batches(plan, steps=20).as_numpy_iterator():
        ids = batch.x["token_ids"]
        held = batch.sample_weight > 0
        seen = np.take_along_axis(ids, batch.x["mask_positions"], 1)[held]
        kinds[0] += (seen == MASK).sum()
        kinds[1] += (seen == batch.y[held]).sum()
        kinds[2] += len(seen)
    # About 4,000 draws: 0.80 and 0.10 + 0.1/20, 6 deviations are 0.04, 0.03.
    assert abs(kinds[0] / kinds[2] - 0.805) < 0.04
    assert abs(kinds[1] / kinds[2] - 0.105) < 0.03


def test_masks_of_test_data_are_always_the_same(files):
    task = tasks.load(section(files))
    x, y, weight = task.examples("test")
    again = tasks.load(section(files)).examples("test")
    np.testing.assert_array_equal(again[1], y)
    np.testing.assert_array_equal(again[0]["token_ids"], x["token_ids"])
    for i, tokens in enumerate(task.x_test):
        part = {key: value[i] for key, value in x.items()}
        check_masked(part, y[i], weight[i], tokens, task.num_masked)
    assert len(task.examples("train", 7)[1]) == 7


def test_public_examples_have_weights(files):
    task = tasks.load(section(files, num_public=30))
    x, y, weight = task.examples("public")
    assert len(x["token_ids"]) == len(y) == len(weight) == 30
    assert "30 of them taken as public" in task.source


@pytest.mark.parametrize("missing", ["path", "vocabulary"])
@pytest.mark.parametrize("value", [None, "/no/such/place"])
def test_no_data_is_one_error_with_the_ways(files, missing, value, monkeypatch):
    # keras-hub asks Kaggle for what it does not know; there is no network.
    def offline(*_):
        raise OSError("no network")

    import keras_hub

    monkeypatch.setattr(
        keras_hub.tokenizers.BertTokenizer, "from_preset", offline
    )
    with pytest.raises(tasks.DataUnavailableError) as caught:
        tasks.load(section(files, **{missing: value}))
    message = str(caught.value)
    for way in (
        f"data.{missing}={value!r}",
        "--config.data.path=FILE_OR_FOLDER",
        "--config.data.vocabulary=FILE",
        "preset",
        "arXiv",
        "binaries.quickstart",
    ):
        assert way in message
    assert caught.value.__cause__ is None


def test_field_that_is_not_there_is_named_with_those_that_are(files):
    with pytest.raises(
        ValueError, match=r"field='title'.*line 1 of text.jsonl"
    ):
        tasks.load(section(files, field="title"))


def test_too_little_text_is_refused(tmp_path):
    files = small_text.write(tmp_path, examples=2)
    with pytest.raises(ValueError, match="more examples"):
        tasks.load(section(files))


def test_sequence_needs_room_for_a_token(files):
    with pytest.raises(ValueError, match="sequence_length=2"):
        tasks.load(section(files, sequence_length=2))


def test_vocabulary_of_a_preset_folder(files, tmp_path):
    import keras_hub

    folder = tmp_path / "preset"
    keras_hub.models.BertBackbone(
        vocabulary_size=20,
        num_layers=1,
        num_heads=1,
        hidden_dim=4,
        intermediate_dim=4,
    ).save_to_preset(str(folder))
    keras_hub.tokenizers.BertTokenizer(vocabulary=files[1]).save_to_preset(
        str(folder)
    )
    task = tasks.load(section((files[0], str(folder))))
    plain = tasks.load(section(files))
    np.testing.assert_array_equal(task.x_train, plain.x_train)


def test_real_abstracts_have_the_known_lengths(shared_data):
    config = sections.text(
        str(shared_data / "arxiv_abstracts.jsonl.gz"),
        field="abstract",
        vocabulary=str(shared_data / "bert_vocab.txt"),
    )
    files = text._files(config.path)
    texts = list(text._texts(files[0], "abstract"))
    assert len(texts) == 60_000
    digests = [hashlib.sha256(key.encode()).digest()[0] for key, _ in texts]
    assert sum(byte < 13 for byte in digests) == 2997
    tokenizer = text._tokenizer(config.vocabulary, True)
    special = {"pad": 0, "cls": 101, "sep": 102, "mask": 103}
    some = [abstract for _, abstract in texts[::60]]
    tokens = text._tokens(tokenizer, some, 512, special)
    # Of all 60,000 the median is 177, and no token is unknown.
    assert 165 < np.median((tokens != 0).sum(1)) < 190
    assert (tokens != 100).all()
