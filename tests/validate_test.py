"""Errors of arguments name them, show the value and say the condition."""

from typing import Any

import numpy as np
import pytest

from tf_dpadaptive import _validate


@pytest.mark.parametrize("value", ["1.1", b"1", None, True, [1.0, 2.0]])
def test_numbers_are_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match=r"`sigma` must be a number"):
        _validate.positive(sigma=value)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (_validate.positive, [1, 0.5, np.float32(2)], [0, -1, np.nan, np.inf]),
        (_validate.non_negative, [0, 1], [-1e-9, np.nan, np.inf]),
        (_validate.open_unit, [0.5, 1e-9], [0, 1, -1, np.nan]),
        (_validate.unit_below_one, [0, 0.999], [1, -0.1, np.nan]),
        (_validate.positive_integer, [1, 2.0], [0, 1.5, np.nan, np.inf]),
    ],
)
def test_ranges(check: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check(argument=value)
    for value in bad:
        with pytest.raises(ValueError, match="argument"):
            check(argument=value)


def test_one_of_lists_what_is_allowed() -> None:
    _validate.one_of(("a", "b"), mode="a")
    with pytest.raises(ValueError, match=r"\['a', 'b'\].*mode='c'"):
        _validate.one_of(("a", "b"), mode="c")
