"""Private MNIST: two convolutions with tanh.

    python -m tf_dpadaptive.binaries.train_mnist --config.data.dir=FOLDER
    ... --config=configs/mnist.py:DPSGD --config.optimizer.learning_rate=0.3

98.2 % test accuracy at ε = 2.93, δ = 1e-5 in 3 minutes on 2 CPU cores.
"""

import ml_collections

from tf_dpadaptive.experiments import sections

# Where an optimizer wants other values than the rest.
_VALUES = {
    "AdaCliP": {"learning_rate": 0.5, "h2": 1e-4},
    "DPSGD": {"learning_rate": 3.0, "momentum": 0.9},
}
_PUBLIC = {"DPAdamSideInformation": 1000}


def get_config(optimizer: str = "DPAdam") -> ml_collections.ConfigDict:
    """Returns the config.

    Args:
        optimizer: A class of `tf_dpadaptive.optimizers`.
    """
    values = {"learning_rate": 0.005, "l2_norm_clip": 0.1}
    config = ml_collections.ConfigDict()
    config.data = sections.data("mnist", num_public=_PUBLIC.get(optimizer))
    config.model = sections.model("mnist_cnn")
    config.optimizer = sections.optimizer(
        optimizer, **values | _VALUES.get(optimizer, {})
    )
    config.privacy = sections.privacy(
        epsilon=2.93, delta=1e-5, expected_batch_size=1024
    )
    config.train = sections.train(epochs=40, schedule="linear")
    return config.lock()
