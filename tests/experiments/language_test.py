"""Tests of the masked language model: sizes, presets, private training."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from tests.data import small_text
from tests.experiments import small
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.clipping.engine import Chunk
from tf_dpadaptive.clipping.geometry import IDENTITY
from tf_dpadaptive.data import tasks
from tf_dpadaptive.experiments import models, runner, sections

TINY = {
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "intermediate_dim": 32,
    "max_sequence_length": 16,
}


@pytest.fixture
def config(tmp_path):
    path, vocabulary = small_text.write(tmp_path)
    made = small.config(
        privacy={"noise_multiplier": 0.1}, learning_rate=0.01
    ).unlock()
    made.data = sections.text(
        path, vocabulary=vocabulary, field="abstract", sequence_length=16
    )
    made.model = sections.model("bert", **TINY)
    made.train.epochs = 2
    made.train.steps_per_epoch = 1
    return made.lock()


def test_default_is_bert_tiny():
    words = np.full((2, 128), 5, np.int32)
    from tf_dpadaptive.data.text import TextTask

    special = {"pad": 0, "cls": 1, "sep": 2, "mask": 3}
    task = TextTask("words", *[words] * 4, 30_522, special=special)
    model = models.build("bert", task)
    assert model.count_params() == 4_433_210
    assert task.num_masked == 19
    assert models.describe(model, sections.model("bert")) == {
        "parameters": 4_433_210,
        "weights": "random",
    }


def test_two_updates_and_a_report(config, tmp_path):
    made = runner.run(config, tmp_path / "run")
    assert made["updates"] == 2
    assert made["model"]["weights"] == "random"
    assert set(made["metrics"]) == {"test_loss"}
    assert made["metrics"]["test_loss"] < made["untrained"]["test_loss"]
    # Of a model that knows nothing: the logarithm of the vocabulary.
    assert made["untrained"]["test_loss"] == pytest.approx(np.log(20), rel=0.05)
    assert 0 < made["epsilon"] < np.inf


@pytest.mark.slow
def test_long_run_learns_the_repeated_words(config, tmp_path):
    config.train.update({"epochs": 3, "steps_per_epoch": 100})
    config.optimizer.learning_rate = 0.02
    config.privacy.noise_multiplier = 0.01
    made = runner.run(config, tmp_path / "run")
    # Always the most frequent word: about ln 15 = 2.7.
    assert made["metrics"]["test_loss"] < 2.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "values"),
    [
        ("DPAdamScaleThenPrivatize", {"l2_norm_clip": 50.0}),
        # Of some tokens the public batches hold nothing.
        ("DPAdamSideInformation", {"epsilon": 1e-3}),
    ],
)
def test_other_optimizers_by_name(config, tmp_path, optimizer, values):
    given = {"learning_rate": 0.01, "l2_norm_clip": 1.0} | values
    with config.unlocked():
        config.optimizer = sections.optimizer(optimizer, **given)
    config.data.num_public = 20
    made = runner.run(config, tmp_path / "run")
    assert made["metrics"]["test_loss"] < made["untrained"]["test_loss"]


def test_microbatches_change_nothing(config, tmp_path):
    config.privacy.noise_multiplier = 0.0
    task = tasks.load(config.data)
    x, y, weight = task.examples("train", 32)
    results = []
    for size in (None, 5):
        config.train.microbatch_size = size
        config.train.seed = 3
        model = runner._model(config, task)
        model.train_on_batch(x, y, weight)
        results.append(model.get_weights())
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_preset_gives_its_weights_and_is_named(config, tmp_path):
    task = tasks.load(config.data)
    saved = models.build("bert", task, **TINY)
    folder = tmp_path / "preset"
    saved.backbone.save_to_preset(str(folder))
    section = sections.model("bert", preset=str(folder))
    model = models.build("bert", task, preset=str(folder))
    np.testing.assert_array_equal(
        model.backbone.token_embedding.embeddings,
        saved.backbone.token_embedding.embeddings,
    )
    assert str(folder) in models.describe(model, section)["weights"]


def test_preset_with_another_vocabulary_is_refused(config, tmp_path):
    task = tasks.load(config.data)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=9, **{**TINY, "dropout": 0.0}
    )
    backbone.save_to_preset(str(tmp_path / "preset"))
    with pytest.raises(ValueError, match=r"of 9 tokens.*of 20"):
        models.build("bert", task, preset=str(tmp_path / "preset"))


def test_example_longer_than_the_model_is_refused(config):
    task = tasks.load(config.data)
    with pytest.raises(ValueError, match="at most 8"):
        models.build("bert", task, **{**TINY, "max_sequence_length": 8})


def test_images_are_refused():
    with pytest.raises(ValueError, match="bright and dark"):
        models.build("bert", small.task())


def test_predictions_of_a_whole_batch_are_not_kept(config):
    task = tasks.load(config.data)
    model = runner._model(config, task)
    x, y, weight = task.examples("train", 32)
    model.train_on_batch(x, y, weight)
    setup = model.private.setup
    batch = Batch(x, y, weight)
    batch = keras.tree.map_structure(tf.constant, batch.without_none())
    rows = Chunk(batch, tf.ones(32, tf.bool), setup.example.draw_seeds(32))
    done = setup.clipped_sum(setup.example.values(), rows, 1.0, IDENTITY)
    assert done.outputs == ()
    assert done.losses.shape == (32,)
