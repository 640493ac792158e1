"""Noise mechanisms as text."""

import pytest

from tf_dpadaptive import noise
from tf_dpadaptive.experiments import mechanisms

MECHANISMS = [
    noise.Independent(),
    noise.BandedMF(5),
    noise.BandedMF(5, toeplitz=False),
    noise.BandedInverse(2, epochs=3),
    noise.TreeAggregation(honaker=False, restart_every=7),
    noise.SquareRoot(),
    noise.DenseMF(epochs=3),
    noise.BLT(3),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_there_and_back(mechanism):
    assert mechanisms.from_text(mechanisms.to_text(mechanism)) == mechanism


def test_short_forms():
    assert mechanisms.from_text("BLT(3)") == noise.BLT(3)
    assert mechanisms.from_text(" TreeAggregation ") == noise.TreeAggregation()
    assert mechanisms.to_text(noise.BandedMF(5)) == "BandedMF(bands=5)"


def test_names_stand_for_values():
    made = mechanisms.from_text("BLT(3, epochs=epochs)", {"epochs": 20})
    assert made == noise.BLT(3, epochs=20)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Laplace()",
        "NoiseMechanism()",
        "BLT",
        "BLT(buffer=3)",
        "BLT(3",
        "BLT(epochs)",
        "BLT(__import__('os').getpid())",
        "noise.BLT(3)",
        "(lambda: 1)()",
        "3",
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="`noise`"):
        mechanisms.from_text(text)


def test_values_are_checked_by_the_mechanism():
    with pytest.raises(ValueError, match="buffers"):
        mechanisms.from_text("BLT(0)")
