r"""A plan to look at before anything is trained: which σ, which noise.

    python -m tf_dpadaptive.binaries.calibrate --config.privacy.epsilon=3 \
        --config.data.num_train=60000 --config.train.epochs=20 \
        --config.privacy.expected_batch_size=512

Prints the privacy statement and a table of the noise mechanisms at the same ε
and δ, and draws their errors against the step (noise.png). No data are read, so
there is no accuracy (%) to expect. Half a minute on 2 CPU cores.
"""

import ml_collections

from tf_dpadaptive.experiments import noise_choice, sections


def get_config() -> ml_collections.ConfigDict:
    """Returns the config."""
    config = ml_collections.ConfigDict()
    config.data = ml_collections.ConfigDict({"num_train": 60_000})
    config.privacy = sections.privacy(
        epsilon=3.0, delta=1e-5, expected_batch_size=512
    )
    config.train = ml_collections.ConfigDict({"epochs": 20})
    # Noise @ sampling; `epochs` stands for train.epochs.
    config.compare = noise_choice.COMPARE
    return config.lock()
