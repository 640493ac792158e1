"""Queries of TF-Privacy, for the tests of the bridge."""

import sys

import pytest
import tensorflow as tf

from tf_dpadaptive.noise import tf_privacy

needs_tf_privacy = pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="tensorflow-privacy 0.9.0 does not install on Python >= 3.12",
)

N = 16
SPECS = [tf.TensorSpec([3, 2]), tf.TensorSpec([]), tf.TensorSpec([4])]
SHAPES = [tuple(spec.shape) for spec in SPECS]


def library(name):
    return tf_privacy.library(name)


def tree(efficient=True, period=None, specs=SPECS, **indicator):
    query = library("tree_aggregation_query").TreeResidualSumQuery
    query = query.build_l2_gaussian_query(
        2.0, 3.0, specs, use_efficient=efficient
    )
    if period is None:
        return query
    restart = library("restart_query")
    return restart.RestartQuery(
        query, restart.PeriodicRoundRestartIndicator(period, **indicator)
    )


def gaussian():
    return library("gaussian_query").GaussianSumQuery(2.0, 6.0)
