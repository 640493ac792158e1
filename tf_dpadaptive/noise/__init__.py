"""Noise mechanisms: independent and correlated over steps."""

from tf_dpadaptive.noise.banded import BandedMF
from tf_dpadaptive.noise.banded_inverse import BandedInverse
from tf_dpadaptive.noise.blt import BLT
from tf_dpadaptive.noise.dense import DenseMF
from tf_dpadaptive.noise.from_dp_query import FromDPQuery
from tf_dpadaptive.noise.independent import Independent
from tf_dpadaptive.noise.mechanism import NoiseMechanism
from tf_dpadaptive.noise.square_root import SquareRoot
from tf_dpadaptive.noise.tree import TreeAggregation

__all__ = [
    "BLT",
    "BandedInverse",
    "BandedMF",
    "DenseMF",
    "FromDPQuery",
    "Independent",
    "NoiseMechanism",
    "SquareRoot",
    "TreeAggregation",
]
