"""Mechanisms that only know their sensitivity, for tests of accounting."""

import math

import keras
import numpy as np

from tf_dpadaptive.noise.mechanism import NoiseMechanism


@keras.saving.register_keras_serializable(package="tests")
class Banded(NoiseMechanism):
    """Column-normalised bands: orthogonal when `bands` steps apart."""

    def __init__(self, bands):
        self.bands = bands

    def get_config(self):
        return {"bands": self.bands}

    def stream(self, white, shapes, *, num_steps, stream=0):
        raise NotImplementedError

    def sensitivity(self, num_steps, min_separation, max_participations):
        if (self.bands or 1) > min_separation:
            raise ValueError(
                f"{self.bands} bands, but separation {min_separation}."
            )
        most = math.ceil(num_steps / min_separation)
        return math.sqrt(min(max_participations, most))

    def row_norms_squared(self, num_steps):
        return np.ones(num_steps)


class Full(NoiseMechanism):
    """C = 1 in all places of the lower triangle, scaled: bands is None."""

    def stream(self, white, shapes, *, num_steps, stream=0):
        raise NotImplementedError

    def sensitivity(self, num_steps, min_separation, max_participations):
        # Columns of ones: participations at 0, b, ... add up in each row.
        rows = np.arange(num_steps)
        parts = np.minimum(rows // min_separation + 1, max_participations)
        return float(np.linalg.norm(parts) / math.sqrt(num_steps))

    def row_norms_squared(self, num_steps):
        return np.ones(num_steps)
