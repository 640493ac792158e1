"""DP-MicroAdam keeps little: the reason why it is there."""

import keras
import numpy as np
import pytest

from tests.optimizers.contract import plan_of
from tf_dpadaptive import optimizers as dpa

#: A small transformer's shapes, as in BERT-tiny: vocabulary, positions, one
#: block, a head; vectors and matrices of realistic sizes.
SHAPES = [
    (30522, 128),
    (512, 128),
    *[(128, 2, 64)] * 3,
    (2, 64, 128),
    (128, 512),
    (512, 128),
    *[(128,)] * 6,
    (512,),
    (128, 10),
    (10,),
]


def state_of(optimizer, shapes=SHAPES) -> list[keras.Variable]:
    """What the optimizer keeps between steps, but for its counters."""
    optimizer.build([keras.Variable(np.zeros(s, "float32")) for s in shapes])
    buffers = [b for s in optimizer._streams for b in s.buffers]
    return [*optimizer.variables[2:], *buffers]


def bytes_of(variable) -> int:
    return int(np.prod(variable.shape)) * np.dtype(variable.dtype).itemsize


def size(shapes=SHAPES) -> int:
    return sum(int(np.prod(s)) for s in shapes)


def test_state_takes_at_most_1_6_bytes_a_parameter():
    optimizer = dpa.DPMicroAdam(1e-3, 1.0, plan_of())
    kept = state_of(optimizer)
    total = sum(bytes_of(v) for v in kept) / size()
    # 4-bit error 0.5, two floats a block of 64 0.125, ten windows of 1 %: 0.8.
    assert 1.4 < total <= 1.6
    # Nothing dense in float32: ranges are 1/32 of a variable, a window 1/10.
    for variable in kept:
        if "float" in str(variable.dtype):
            assert np.prod(variable.shape) <= 0.11 * 30522 * 128
    floats = sum(int(np.prod(v.shape)) for v in kept if "float" in str(v.dtype))
    assert floats <= 0.15 * size()


def test_the_same_count_gives_adam_its_eight_bytes():
    kept = state_of(dpa.DPAdam(1e-3, 1.0, plan_of()))
    assert sum(bytes_of(v) for v in kept) == 8 * size()


@pytest.mark.parametrize(
    ("feedback", "expected"),
    [("quantized", 1.425), ("full", 4.8), ("none", 0.8)],
)
def test_error_feedback_costs_what_the_docstring_says(feedback, expected):
    kept = state_of(
        dpa.DPMicroAdam(1e-3, 1.0, plan_of(), error_feedback=feedback)
    )
    total = sum(bytes_of(v) for v in kept) / size()
    assert total == pytest.approx(expected, rel=0.01)


def test_every_variable_that_outlives_a_step_is_counted():
    # A slot that is no variable of the optimizer would escape the sum.
    import tensorflow as tf

    optimizer = dpa.DPMicroAdam(1e-3, 1.0, plan_of())
    state_of(optimizer, SHAPES[1:])
    counted = {id(v) for v in optimizer.variables}
    slots = [v for kept in optimizer._slots for v in kept]
    assert {id(v) for v in slots} <= counted
    large = [
        name
        for name, value in vars(optimizer).items()
        if tf.is_tensor(value) and value.shape.num_elements() > 100
    ]
    assert not large
