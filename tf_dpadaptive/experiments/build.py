"""Builds what the sections of a config describe."""

import math
from typing import Any

import keras
import ml_collections

import tf_dpadaptive as dpa
from tf_dpadaptive.experiments import mechanisms, sections


def plan(
    config: ml_collections.ConfigDict, num_examples: int
) -> dpa.PrivacyPlan:
    """Makes the plan that a config's `privacy` section describes.

    Args:
        config: The whole config.
        num_examples: Size of the training set.

    Returns:
        A plan, calibrated to `privacy.epsilon` or with the given
        `privacy.noise_multiplier`.

    Raises:
        ValueError: If both of them or neither is given.
    """
    given = sections.given(config.privacy)
    given["noise"] = mechanisms.from_text(
        given["noise"], {"epochs": config.train.epochs}
    )
    given["num_examples"] = num_examples
    if ("epsilon" in given) == ("noise_multiplier" in given):
        raise ValueError(
            "Give one of `privacy.epsilon` and `privacy.noise_multiplier`. "
            f"Received: privacy.epsilon={config.privacy.epsilon!r}, "
            f"privacy.noise_multiplier={config.privacy.noise_multiplier!r}."
        )
    steps = config.train.get("steps_per_epoch")
    if steps is None:
        steps = math.ceil(num_examples / given["expected_batch_size"])
    given["num_steps"] = steps * config.train.epochs
    if "epsilon" in given:
        return dpa.PrivacyPlan.calibrate(**given)
    return dpa.PrivacyPlan(**given)


def optimizer(
    config: ml_collections.ConfigDict,
    plan: dpa.PrivacyPlan,
    public: tuple[Any, ...] | None = None,
) -> keras.optimizers.Optimizer:
    """Makes the optimizer that a config's `optimizer` section describes.

    Args:
        config: The whole config.
        plan: The plan; schedules take their length from it.
        public: Inputs, labels and, where there are, weights of public
            examples, for optimizers with side information.

    Returns:
        The optimizer, given only those arguments that have a value.

    Raises:
        ValueError: If the optimizer needs public data and has none.
    """
    section = config.optimizer
    arguments = sections.given(section, "name", "inner")
    arguments["learning_rate"] = _schedule(
        config.train.schedule, arguments["learning_rate"], plan.num_steps
    )
    if "inner" in section:
        clip = arguments.pop("l2_norm_clip")
        inner = getattr(keras.optimizers, section.inner)(**arguments)
        return dpa.optimizers.DPPostProcessing(inner, clip, plan)
    made = getattr(dpa.optimizers, section.name)(plan=plan, **arguments)
    if hasattr(made, "set_public_batches"):
        made.set_public_batches(_batches(public, section.name))
    return made


def _batches(public: tuple[Any, ...] | None, name: str) -> list[Any]:
    """Batches of equal shape, of 100 public examples if there are as many."""
    if public is None:
        raise ValueError(
            f"{name} needs public data: set `data.num_public`, or give a "
            "`task` with `public`. Received: data.num_public=None."
        )
    rows = len(public[1])
    size = min(100, rows)
    return [
        keras.tree.map_structure(lambda part, i=i: part[i : i + size], public)
        for i in range(0, rows - size + 1, size)
    ]


def _schedule(name: str, rate: float, steps: int | None) -> Any:
    schedules = keras.optimizers.schedules
    if name == "constant":
        return rate
    if name == "linear":
        return schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0)
    if name == "cosine":
        return schedules.CosineDecay(rate, steps)
    raise ValueError(
        "`train.schedule` must be constant, linear or cosine. "
        f"Received: train.schedule={name!r}."
    )
