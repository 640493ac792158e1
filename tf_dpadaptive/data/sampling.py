"""The batches of a plan, and how to know them again."""

import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_dpadaptive import _validate
from tf_dpadaptive.batch import Batch
from tf_dpadaptive.data import arrays
from tf_dpadaptive.data.sampler import Sampler

if TYPE_CHECKING:
    from tf_dpadaptive.plan import PrivacyPlan

#: id of a plan -> seed -> the sampler of its run, as long as the plan lives.
_RUNS: dict[int, dict[int | None, Sampler]] = {}
_ATTRIBUTE = "_tf_dpadaptive_sampler"
#: Transformations that hand on the same batches in the same order.
_TRANSPARENT = ("_PrefetchDataset", "_OptionsDataset")


def batches(
    plan: "PrivacyPlan",
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    steps: int | None = None,
    seed: int | None = None,
    map_fn: Callable[..., Any] | None = None,
) -> tf.data.Dataset:
    """Returns a dataset of batches sampled as the plan says.

    One element is one update, a `Batch` of `plan.max_batch_size` rows: the
    examples first, then padding (zeros, empty strings), told apart by
    `padding`. An update may be padding alone. The arrays are held in memory.

    poisson samples afresh at every update of every pass. The other ways belong
    to a run: further calls on the same plan object (and seed) go on with the
    same parts or order, at the position reached; an equal plan made anew
    begins a new run. All N examples take part once in ⌈N/B⌉ updates of
    shuffled and in_order, the last of which may be smaller. See
    `data.sampler`.

    Args:
        plan: The plan; it must have `num_examples`.
        x: Array or structure of arrays, of `num_examples` rows.
        y: Targets, of as many rows, or None.
        sample_weight: Weights of the loss, of as many rows, or None.
        steps: Updates in one pass, >= 1; default ⌈N/B⌉.
        seed: For tests: whoever knows it knows who took part in which update.
        map_fn: Augmentation of one example at a time, before batching: takes
            and returns (x), (x, y) or (x, y, sample_weight), as many as there
            are. It is never called on padding. That it holds no examples is
            looked at (no tensor of `num_examples` rows or columns), but not
            proved: a part of the data kept in it is in no ε.

    Raises:
        ValueError: if the plan has no `num_examples`, or sizes differ from it.
        TypeError: for what is no array.

    Privacy:
        The samples are independent of the data. Without `seed` they come from
        the operating system.
    """
    if seed is not None:
        warnings.warn(
            "`plan.batches` was given `seed`: whoever knows the seed knows who "
            "took part in which update, and the amplification in ε does not "
            "hold against them. Use it in tests only.",
            stacklevel=3,
        )
    default = plan.steps_per_epoch
    steps = default if steps is None else steps
    _validate.positive_integer(steps=steps)
    examples = arrays.as_examples(
        x, y, sample_weight, int(plan.num_examples or 0)
    )
    sampler = _sampler(plan, seed)
    rows = plan.max_batch_size

    def indices() -> Iterator[tuple[np.ndarray, int]]:
        for chosen in sampler.updates(int(steps)):
            padded = np.zeros(rows, np.int64)
            padded[: len(chosen)] = chosen
            yield padded, len(chosen)

    dataset = tf.data.Dataset.from_generator(
        indices,
        output_signature=(
            tf.TensorSpec([rows], tf.int64),
            tf.TensorSpec([], tf.int32),
        ),
    ).map(
        tf.autograph.experimental.do_not_convert(
            lambda chosen, count: arrays.gather(examples, chosen, count)
        )
    )
    if map_fn is not None:
        dataset = arrays.map_examples(
            dataset, map_fn, rows, int(plan.num_examples or 0)
        )
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(int(steps)))
    setattr(dataset, _ATTRIBUTE, sampler)
    return dataset


def origin(dataset: Any) -> Sampler | None:
    """Returns the sampler of a dataset of `plan.batches`, or None.

    Known through `.prefetch` and `.with_options`, which hand on the same
    batches in the same order; not through `.map`, `.repeat`, `.shuffle`,
    `.filter`, …, which may change what was sampled.

    Args:
        dataset: Anything.
    """
    while isinstance(dataset, tf.data.Dataset):
        sampler = getattr(dataset, _ATTRIBUTE, None)
        if sampler is not None:
            return sampler
        if type(dataset).__name__ not in _TRANSPARENT:
            return None
        dataset = getattr(dataset, "_input_dataset", None)
    return None


def _sampler(plan: "PrivacyPlan", seed: int | None) -> Sampler:
    """The sampler of the plan's run; a new one for poisson."""
    # Equal, but another object: the sampler must not keep its own key alive.
    copied = replace(plan)
    if plan.sampling == "poisson":
        return Sampler(copied, seed)
    if id(plan) not in _RUNS:
        _RUNS[id(plan)] = {}
        weakref.finalize(plan, _RUNS.pop, id(plan), None)
    runs = _RUNS[id(plan)]
    if seed not in runs:
        runs[seed] = Sampler(copied, seed)
    return runs[seed]


__all__ = ["Batch", "Sampler", "batches", "origin"]
