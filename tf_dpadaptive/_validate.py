"""Checks of arguments: each error names the argument and shows the value."""

import math
from typing import Any

#: Below this a clip norm means nothing in float32: squares of entries below
#: 1e-19 are flushed to zero, and a gradient of many such entries is longer than
#: its computed norm.
SMALLEST_CLIP_NORM = 1e-10


def _number(name: str, value: Any, condition: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            if isinstance(value, (bool, str, bytes)):
                raise TypeError
            value = float(value)
        except (TypeError, ValueError):
            raise TypeError(
                f"`{name}` must be a number {condition}. "
                f"Received: {name}={value!r}."
            ) from None
    return float(value)


def positive(**arguments: Any) -> None:
    """Raises unless each argument is a finite number > 0."""
    for name, value in arguments.items():
        number = _number(name, value, "> 0")
        if not (math.isfinite(number) and number > 0):
            raise ValueError(
                f"`{name}` must be finite and > 0. Received: {name}={value!r}."
            )


def clip_norm(**arguments: Any) -> None:
    """Raises unless each argument is a clip norm that float32 can hold to."""
    positive(**arguments)
    for name, value in arguments.items():
        if value < SMALLEST_CLIP_NORM:
            raise ValueError(
                f"`{name}` must be >= {SMALLEST_CLIP_NORM}: squares of smaller "
                "gradients vanish in float32, and the clip would let them "
                f"pass. Received: {name}={value!r}. Scale the loss up instead."
            )


def non_negative(**arguments: Any) -> None:
    """Raises unless each argument is a finite number >= 0."""
    for name, value in arguments.items():
        number = _number(name, value, ">= 0")
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(
                f"`{name}` must be finite and >= 0. Received: {name}={value!r}."
            )


def open_unit(**arguments: Any) -> None:
    """Raises unless each argument lies strictly between 0 and 1."""
    for name, value in arguments.items():
        number = _number(name, value, "in (0, 1)")
        if not 0 < number < 1:
            raise ValueError(
                f"`{name}` must lie strictly between 0 and 1. "
                f"Received: {name}={value!r}."
            )


def unit_below_one(**arguments: Any) -> None:
    """Raises unless each argument lies in [0, 1)."""
    for name, value in arguments.items():
        number = _number(name, value, "in [0, 1)")
        if not 0 <= number < 1:
            raise ValueError(
                f"`{name}` must lie in [0, 1). Received: {name}={value!r}."
            )


def positive_integer(**arguments: Any) -> None:
    """Raises unless each argument is a whole number >= 1."""
    for name, value in arguments.items():
        number = _number(name, value, ">= 1")
        if number != int(number) if math.isfinite(number) else True:
            raise ValueError(
                f"`{name}` must be a whole number >= 1. "
                f"Received: {name}={value!r}."
            )
        if number < 1:
            raise ValueError(
                f"`{name}` must be >= 1. Received: {name}={value!r}."
            )


def one_of(allowed: tuple[Any, ...], **arguments: Any) -> None:
    """Raises unless each argument is one of `allowed`."""
    for name, value in arguments.items():
        if value not in allowed:
            raise ValueError(
                f"`{name}` must be one of {list(allowed)}. "
                f"Received: {name}={value!r}."
            )
