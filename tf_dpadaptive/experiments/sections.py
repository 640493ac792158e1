"""The sections of a config: each field that can be set, and no other.

`optimizer` and `model` read the constructor that they describe, so that a new
argument can be set from the command line the day it exists and a typo fails.
A field without a value is a placeholder: it keeps the constructor's default.
"""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import keras
import ml_collections
from ml_collections import config_dict

import tf_dpadaptive as dpa
from tf_dpadaptive.experiments import models

# Given by the plan, or of no use in a config (a known seed is no privacy).
_NOT_IN_CONFIG = frozenset(
    {"self", "optimizer", "plan", "seed", "ledger", "name", "kwargs"}
)
# What Keras' base class takes and a DP optimizer does not refuse.
_KERAS = {
    "weight_decay": float,
    "use_ema": bool,
    "ema_momentum": float,
    "ema_overwrite_frequency": int,
}


def data(name: str, **values: Any) -> ml_collections.ConfigDict:
    """Section `data`; see `tasks.load`.

    Args:
        name: The data set.
        **values: Values of `dir`, `num_train`, `num_test`, `num_public`.

    Returns:
        The section.
    """
    return _section(
        {
            "name": name,
            "dir": config_dict.placeholder(str),
            "num_train": config_dict.placeholder(int),
            "num_test": config_dict.placeholder(int),
            "num_public": config_dict.placeholder(int),
        },
        values,
    )


def text(path: str | None = None, **values: Any) -> ml_collections.ConfigDict:
    """Section `data` of text; see `text.load`.

    Args:
        path: The file or folder.
        **values: Values of `field`, `vocabulary`, `lowercase`,
            `sequence_length`, `num_train`, `num_test`, `num_public`.

    Returns:
        The section.
    """
    return _section(
        {
            "name": "text",
            "path": config_dict.placeholder(str),
            "field": "text",
            "vocabulary": config_dict.placeholder(str),
            "lowercase": True,
            "sequence_length": 128,
            "num_train": config_dict.placeholder(int),
            "num_test": config_dict.placeholder(int),
            "num_public": config_dict.placeholder(int),
        },
        {"path": path, **values},
    )


def model(name: str, **values: Any) -> ml_collections.ConfigDict:
    """Section `model`: the name and every argument of that model.

    Args:
        name: A key of `models.MODELS`.
        **values: Values other than the defaults.

    Returns:
        The section.
    """
    fields = {"name": name} | _arguments(models.MODELS[name])
    return _section(fields, values)


def optimizer(
    name: str, *, learning_rate: float, l2_norm_clip: float, **values: Any
) -> ml_collections.ConfigDict:
    """Section `optimizer`: the name and every argument of that optimizer.

    Args:
        name: A class of `tf_dpadaptive.optimizers`. "DPPostProcessing:Lion"
            takes Keras' Lion as the inner optimizer; without a second name it
            is Adam.
        learning_rate: η > 0.
        l2_norm_clip: ζ > 0.
        **values: Values other than the defaults. A name that this optimizer
            does not have is an error.

    Returns:
        The section.

    Raises:
        ValueError: If there is no such optimizer.
    """
    name, _, inner = name.partition(":")
    fields: dict[str, Any] = {"name": name}
    if name == "DPPostProcessing":
        fields["inner"] = inner or "Adam"
        fields |= _constructor(_find(keras.optimizers, fields["inner"]))
    else:
        fields |= _constructor(_find(dpa.optimizers, name))
    for key, kind in _KERAS.items():
        fields.setdefault(key, config_dict.placeholder(kind))
    for key in ("learning_rate", "l2_norm_clip"):
        fields[key] = config_dict.placeholder(float)
    values |= {"learning_rate": learning_rate, "l2_norm_clip": l2_norm_clip}
    return _section(fields, values)


def num_public(optimizer: str, number: int) -> int | None:
    """How many examples to declare public, for section `data`.

    Args:
        optimizer: As `name` of `optimizer`.
        number: What an optimizer with side information is given.

    Returns:
        `number` for those, and None for all others.
    """
    kind = getattr(dpa.optimizers, optimizer.partition(":")[0], None)
    return number if hasattr(kind, "set_public_batches") else None


def privacy(
    *, delta: float, expected_batch_size: int, **values: Any
) -> ml_collections.ConfigDict:
    """Section `privacy`: what the `PrivacyPlan` is made of.

    Args:
        delta: δ, in (0, 1).
        expected_batch_size: B, >= 1.
        **values: Either `epsilon`, to calibrate to, or `noise_multiplier`;
            and `sampling`, `adjacency`, `noise`, a text
            such as "BLT(3, epochs=epochs)" (see `mechanisms.from_text`).

    Returns:
        The section.
    """
    return _section(
        {
            "delta": delta,
            "expected_batch_size": expected_batch_size,
            "epsilon": config_dict.placeholder(float),
            "noise_multiplier": config_dict.placeholder(float),
            "sampling": "poisson",
            "adjacency": "zero_out",
            "noise": "Independent",
        },
        values,
    )


def train(*, epochs: int, **values: Any) -> ml_collections.ConfigDict:
    """Section `train`: how long, how fast, and what is shown.

    Args:
        epochs: Passes, >= 1; each ends with an evaluation.
        **values: `steps_per_epoch`, updates in one pass, where it is not to be
            ⌈N/B⌉; `schedule` ("constant", "linear" or "cosine" decay to 0
            over the run); `seed` (of the initial weights only: noise and
            sampling stay secret); `clipping` and `microbatch_size` as in
            `privatize`; `verbose` as in Keras, by default a progress bar on a
            terminal and a line an epoch elsewhere;
            `nonprivate_gradient_norms`, which adds to the picture a
            histogram that is NOT covered by ε: for public data only.

    Returns:
        The section.
    """
    return _section(
        {
            "epochs": epochs,
            "steps_per_epoch": config_dict.placeholder(int),
            "schedule": "constant",
            "seed": config_dict.placeholder(int),
            "clipping": "auto",
            "microbatch_size": config_dict.placeholder(int),
            "verbose": config_dict.placeholder(int),
            "nonprivate_gradient_norms": False,
        },
        values,
    )


def given(section: ml_collections.ConfigDict, *without: str) -> dict[str, Any]:
    """Returns the fields of a section that have a value.

    Args:
        section: The section.
        *without: Names to leave out.

    Returns:
        Values by name. A constructor says itself which argument it lacks.
    """
    return {
        key: value
        for key, value in section.items()
        if value is not None and key not in without
    }


def _section(
    fields: dict[str, Any], values: dict[str, Any]
) -> ml_collections.ConfigDict:
    section = ml_collections.ConfigDict(fields).lock()
    section.update(values)
    return section


def _find(module: Any, name: str) -> Any:
    found = getattr(module, name, None)
    if not isinstance(found, type):
        known = [n for n in dir(module) if isinstance(vars(module)[n], type)]
        raise ValueError(
            f"`optimizer.name` must be one of {known}. Received: {name!r}."
        )
    return found


def _constructor(kind: type) -> dict[str, Any]:
    """Arguments of a class and of the bases that it hands **kwargs on to."""
    fields: dict[str, Any] = {}
    for base in kind.__mro__:
        init = vars(base).get("__init__")
        if init is None:
            continue
        fields = _arguments(init) | fields
        if "kwargs" not in inspect.signature(init).parameters:
            break
    return fields


def _arguments(function: Callable[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(function)
    fields = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in _NOT_IN_CONFIG or name == "task":
            continue
        default = parameter.default
        kind = _kind(hints.get(name))
        if default is None or default is inspect.Parameter.empty:
            if kind is None:
                continue  # No text on a command line is such a value.
            fields[name] = config_dict.placeholder(kind)
        elif isinstance(default, (bool, int, float, str)):
            fields[name] = default if kind is None else kind(default)
    return fields


def _kind(hint: Any) -> type | None:
    """The type of a field, from an annotation such as `float | None`."""
    for option in typing.get_args(hint) or (hint,):
        if option in (bool, int, float, str):
            return option
    return None
