r"""The one place that knows TF-Privacy (Python 3.11).

The bridge goes both ways: `from_dp_query` and `as_dp_query`. TF-Privacy is
imported where it is used and nowhere else: it exists for Python up to 3.11, and
a plan that names one of its queries is loaded, and its ε computed, without it.

Randomness. TF-Privacy's queries draw noise that nobody has keyed: its tree
seeds itself from the clock, some 2^40 seeds for who knows the day of training;
`GaussianSumQuery` draws from TensorFlow's global generator, which follows
`set_random_seed` if anybody called it, starts from 32 bits of the operating
system if not, and gives the same numbers in every process under XLA. No ε
holds against somebody who tries seeds. So the bridge runs TF-Privacy's code on
numbers of `keys.SecretKeys` in the place of its own.

Reference: https://github.com/tensorflow/privacy, version 0.9.0.
"""

import importlib
import sys
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.noise.mechanism import NoiseMechanism


def library(module: str) -> Any:
    """Imports `tensorflow_privacy.privacy.dp_query.<module>`.

    Raises:
        ImportError: if TF-Privacy can't be had.
    """
    # Its own __init__ imports estimators, which TensorFlow no longer has.
    missing = object()
    before = getattr(sys, "skip_tf_privacy_import", missing)
    sys.skip_tf_privacy_import = True  # pyright: ignore
    try:
        return importlib.import_module(
            f"tensorflow_privacy.privacy.dp_query.{module}"
        )
    except ImportError as error:
        raise ImportError(
            "The bridge to TF-Privacy needs tensorflow-privacy 0.9.0, which "
            "installs on Python 3.11 and not on later ones. Use the "
            f"mechanisms of `dpa.noise` themselves. ({error})"
        ) from error
    finally:
        if before is missing:
            del sys.skip_tf_privacy_import  # pyright: ignore
        else:
            sys.skip_tf_privacy_import = before  # pyright: ignore


def described(query: Any) -> dict[str, Any]:
    """Returns what the law of a query's noise hangs on.

    Args:
        query: A `DPQuery`.

    Returns:
        JSON-serialisable; see `from_dp_query.FromDPQuery`.

    Raises:
        ImportError: if TF-Privacy can't be had.
        ValueError: if the law, and so ε, is not known.
    """
    mechanism = getattr(query, "mechanism", None)
    if isinstance(mechanism, NoiseMechanism):
        return {"mechanism": keras.saving.serialize_keras_object(mechanism)}
    trees, restarts = library("tree_aggregation"), library("restart_query")
    tree_query = library("tree_aggregation_query").TreeResidualSumQuery
    period, inner = None, query
    if type(query) is restarts.RestartQuery:
        indicator, inner = query._restart_indicator, query._inner_query
        if type(indicator) is not restarts.PeriodicRoundRestartIndicator:
            raise _refused(query, "it restarts at times not known beforehand")
        if indicator.warmup:
            raise _refused(query, "its first tree is shorter: use no `warmup`")
        period = int(indicator.period)
    if type(inner) is library("gaussian_query").GaussianSumQuery:
        return {"name": "GaussianSumQuery"}
    if type(inner) is not tree_query:
        theirs = isinstance(query, library("dp_query").DPQuery)
        raise _refused(query, "its law is not known" if theirs else "no query")
    aggregator = inner._tree_aggregator
    if type(aggregator.value_generator) is not trees.GaussianNoiseGenerator:
        raise _refused(query, "its nodes are not known to be Gaussian")
    return {
        "name": "TreeResidualSumQuery",
        "efficient": isinstance(aggregator, trees.EfficientTreeAggregator),
        "restart_every": period,
        "shapes": [
            list(spec.shape) for spec in tf.nest.flatten(inner._record_specs)
        ],
    }


def _refused(query: Any, why: str) -> ValueError:
    return ValueError(
        "`query` must be a GaussianSumQuery, a TreeResidualSumQuery with "
        "Gaussian noise, or a RestartQuery of that with a "
        "PeriodicRoundRestartIndicator, so that its ε is known. Received: "
        f"query={query!r} ({why}). Use a mechanism of `dpa.noise`."
    )
