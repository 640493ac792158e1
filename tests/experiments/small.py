"""A task and configs that train in a moment; shared by these tests."""

import ml_collections
import numpy as np

from tf_dpadaptive.data.tasks import Task
from tf_dpadaptive.experiments import sections


def task(train=96, test=48, shape=(4, 4, 1)):
    """Two classes of bright and dark images: learnt within a few updates."""
    rng = np.random.default_rng(5)
    labels = np.arange(train + test) % 2
    images = rng.uniform(0, 0.4, (train + test, *shape)).astype(np.float32)
    images += 0.6 * labels.reshape(-1, *[1] * len(shape)).astype(np.float32)
    return Task(
        "bright and dark",
        images[:train],
        labels[:train],
        images[train:],
        labels[train:],
        num_classes=2,
    )


def config(optimizer="DPAdam", *, epochs=3, privacy=None, **values):
    """A whole config for `task`; σ is small, so that the loss falls."""
    made = ml_collections.ConfigDict()
    made.data = sections.data("digits")
    made.model = sections.model("logistic")
    made.optimizer = sections.optimizer(
        optimizer, **{"learning_rate": 0.1, "l2_norm_clip": 1.0} | values
    )
    made.privacy = sections.privacy(
        delta=1e-3,
        expected_batch_size=32,
        **privacy or {"noise_multiplier": 0.5},
    )
    made.train = sections.train(epochs=epochs, verbose=0, seed=1)
    return made.lock()
