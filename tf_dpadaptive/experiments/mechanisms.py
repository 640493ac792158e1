"""Noise mechanisms as text, for configs and command lines."""

import ast
import inspect
from collections.abc import Mapping
from typing import Any

import tf_dpadaptive as dpa
from tf_dpadaptive.noise import NoiseMechanism


def from_text(
    text: str, names: Mapping[str, Any] | None = None
) -> NoiseMechanism:
    """Makes the mechanism that a text such as "BLT(3)" describes.

    Args:
        text: A class of `tf_dpadaptive.noise`, with arguments or without.
            Nothing in it is run: arguments are literals, or keys of `names`.
        names: Values by name.

    Returns:
        The mechanism.

    Raises:
        ValueError: if the text is something else.

    >>> from_text("BandedMF(bands=4)").bands
    4
    """
    known = [n for n in dpa.noise.__all__ if n != "NoiseMechanism"]
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        values = [_value(a, names or {}) for a in call.args]
        keywords = {
            str(k.arg): _value(k.value, names or {}) for k in call.keywords
        }
    except (SyntaxError, ValueError) as error:
        name, values, keywords, why = "", [], {}, f" ({error})"
    else:
        why = ""
    if name not in known:
        raise ValueError(
            f"`noise` must be one of {known}, with arguments where it has "
            f'some, as in "BLT(3)". Received: noise={text!r}{why}.'
        )
    try:
        return getattr(dpa.noise, name)(*values, **keywords)
    except TypeError as error:
        raise ValueError(
            f"`noise` has wrong arguments: {error}. Received: noise={text!r}."
        ) from error


def to_text(mechanism: NoiseMechanism) -> str:
    """Returns the short text that `from_text` makes the same mechanism of.

    Args:
        mechanism: The mechanism.

    >>> to_text(dpa.noise.BLT(3, epochs=1))
    'BLT(buffers=3)'
    """
    defaults = inspect.signature(type(mechanism)).parameters
    given = [
        f"{name}={value!r}"
        for name, value in mechanism.get_config().items()
        if value != defaults[name].default
    ]
    return f"{type(mechanism).__name__}({', '.join(given)})"


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    return ast.literal_eval(node)
