"""Makes a class private without renaming it, so that it saves as itself."""

import functools
from typing import Any

import keras
from keras.src import api_export
from keras.src.saving import object_registration

from tf_dpadaptive.training.model import PrivateTraining
from tf_dpadaptive.training.preprocessing import PrivatePreprocessing


@functools.cache
def private_class(original: type) -> type:
    """Returns a subclass of `original` whose training is private.

    Args:
        original: A Keras model class.

    The subclass carries the original's name, module and registered name:
    Keras saves the model as the original class.
    """
    bases: tuple[Any, ...] = (PrivateTraining, original)
    if hasattr(original, "preprocess_samples"):
        bases = (PrivatePreprocessing, *bases)
    return _disguised(original, bases, {"plain_class": original})


@functools.cache
def functional_form(original: type) -> type:
    """Returns a subclass of a `DPModel` subclass that is made of a graph.

    Keras would exchange the base classes of `original`, and so of `DPModel`
    itself: every other subclass would become functional too.

    Args:
        original: A subclass of `DPModel`.
    """
    return _disguised(original, (original, keras.src.models.Functional), {})


def _disguised(
    original: Any, bases: tuple[Any, ...], members: dict[str, Any]
) -> type:
    made = type(original)(
        original.__name__,
        bases,
        {
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            **members,
        },
    )
    registered = keras.saving.get_registered_name(original)
    object_registration.GLOBAL_CUSTOM_NAMES[made] = registered
    exported = api_export.get_name_from_symbol(original)
    if exported is not None:  # a class of Keras, known as keras.Sequential
        api_export.REGISTERED_OBJS_TO_NAMES[made] = exported
    return made
