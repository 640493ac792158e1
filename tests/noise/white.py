"""White noise from an array: the same numbers in eager, graph and XLA."""

import numpy as np
import tensorflow as tf


class Replayed:
    """z[stream][variable] of shape (num_steps, ...), float32."""

    def __init__(self, shapes, num_steps, streams=1, seed=0):
        rng = np.random.default_rng(seed)
        self.z = [
            [
                rng.standard_normal((num_steps, *shape)).astype(np.float32)
                for shape in shapes
            ]
            for _ in range(streams)
        ]
        self.asked = []

    def normal(self, step, variable, stream, shape):
        z = tf.constant(self.z[stream][variable])
        assert tuple(z.shape[1:]) == tuple(shape)
        self.asked.append((variable, stream))
        return tf.gather(z, step)


def expected(mechanism, white, num_steps, stream=0):
    """C⁻¹z by solving with C, one array (num_steps, ...) a variable."""
    c = mechanism.strategy_matrix(num_steps)
    return [
        np.linalg.solve(c, z.reshape(num_steps, -1).astype(np.float64)).reshape(
            z.shape
        )
        for z in white.z[stream]
    ]


def run(stream, steps, wrap=lambda function: function):
    """The noise of these steps, one array (steps, ...) a variable."""
    draw = wrap(stream.next)
    rows = [draw(tf.constant(t, tf.int64)) for t in steps]
    return [
        np.stack([row[i].numpy() for row in rows]) for i in range(len(rows[0]))
    ]
