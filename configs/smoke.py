"""A few updates on a part of the digits: does it run at all?

    python -m tf_dpadaptive.binaries.train_mnist --config=configs/smoke.py:DPSGD

Seconds on a CPU. The accuracy means nothing.
"""

import ml_collections

from tf_dpadaptive.experiments import sections

_REQUIRED = {"AdaCliP": {"h2": 1.0}}


def get_config(optimizer: str = "DPAdam") -> ml_collections.ConfigDict:
    """Returns the config.

    Args:
        optimizer: A class of `tf_dpadaptive.optimizers`.
    """
    config = ml_collections.ConfigDict()
    config.data = sections.data(
        "digits",
        num_train=256,
        num_test=64,
        num_public=sections.num_public(optimizer, 50),
    )
    config.model = sections.model("logistic")
    config.optimizer = sections.optimizer(
        optimizer,
        learning_rate=0.05,
        l2_norm_clip=1.0,
        **_REQUIRED.get(optimizer, {}),
    )
    config.privacy = sections.privacy(
        noise_multiplier=1.0, delta=1e-3, expected_batch_size=64
    )
    config.train = sections.train(epochs=2, verbose=0)
    return config.lock()
