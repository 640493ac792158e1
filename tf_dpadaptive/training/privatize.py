"""`privatize`, and the subclass forms `DPModel` and `DPSequential`."""

from typing import Any

import keras
from keras.src.models import Functional
from keras.src.models import model as model_module

from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.training import checks
from tf_dpadaptive.training.model import PrivateTraining
from tf_dpadaptive.training.private_class import functional_form, private_class
from tf_dpadaptive.training.setup import PrivateState


def privatize(
    model: keras.Model,
    *,
    clipping: str = "auto",
    microbatch_size: int | None = None,
    self_check: bool = True,
) -> Any:
    """Makes a Keras model train with differential privacy, in place.

    Args:
        model: Any Keras 3 model: Sequential, Functional, subclassed, keras-hub.
        clipping: How per-example gradients are made: `"auto"` (the best engine
            that works), `"vectorized"`, or `"sequential"` (slow, the
            reference). All give the same update.
        microbatch_size: Rows whose gradients are held at once; bounds memory
            and never changes what is released. None lets the engine choose.
        self_check: Whether, before the first update after a `compile`, the
            layer-wise engine is compared with single examples on a few rows
            of the data. A wrong gradient norm would make ε false; `fit` then
            raises and names the variable. Costs seconds, once.

    Returns:
        The same object. It must be compiled (again) with a DP optimizer and
        saves as its original class.

    Raises:
        TypeError: if `model` is not a Keras model.
        ValueError: if the model would break the guarantee; all reasons at once.

    Privacy: privatizing covers updates from now on. What the weights learnt
        before is not covered, except by the ledger of a DP optimizer that was
        loaded with the model.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a Keras 3 model. Received: "
            f"model={type(model).__name__}."
        )
    state = PrivateState(clipping, microbatch_size, self_check)
    checks.raise_all(checks.model_reasons(model), "This model")
    if isinstance(model, PrivateTraining):
        state.ledger = model.private.ledger
        state.optimizer = model.private.optimizer
    else:
        _refuse_hidden_names(model)
        model.__class__ = private_class(type(model))
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, DPOptimizer):
        state.ledger.merge(optimizer.ledger)
    model._keep(state)
    model.train_function = None
    model.test_function = None
    model.predict_function = None
    model.compiled = False
    return model


def _refuse_hidden_names(model: keras.Model) -> None:
    """Raises if a privatized model would hide attributes of the model."""
    own = [n for n in vars(PrivateTraining) if not n.startswith("_")]
    taken = [
        name
        for name in own
        if name in vars(model)
        or (hasattr(type(model), name) and not hasattr(keras.Model, name))
    ]
    if taken:
        names = ", ".join(f"`{name}`" for name in sorted(taken))
        raise ValueError(
            f"{type(model).__name__} has attributes of its own that a "
            f"privatized model needs for itself: {names}. Rename them."
        )


class _AnyPrivateModel(type(keras.Model)):
    """Lets `isinstance(model, DPModel)` hold for every privatized model."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls in (DPModel, DPSequential):
            return isinstance(instance, PrivateTraining) and isinstance(
                instance, cls.plain
            )
        return super().__instancecheck__(instance)


class DPModel(PrivateTraining, keras.Model, metaclass=_AnyPrivateModel):
    """A Keras model that trains privately: `DPModel(inputs, outputs, ...)`.

    Args:
        *args: As `keras.Model`.
        clipping: See `privatize`.
        microbatch_size: See `privatize`.
        self_check: See `privatize`.
        **kwargs: As `keras.Model`.

    May be subclassed, with an own `call` or by handing inputs and outputs to
    `super().__init__`, like `keras.Model`.
    """

    private_training = True
    plain = keras.Model

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a privatized functional model, or a subclass instance."""
        if cls is DPModel:
            options = {
                key: kwargs.pop(key)
                for key in ("clipping", "microbatch_size", "self_check")
                if key in kwargs
            }
            return privatize(cls.plain(*args, **kwargs), **options)
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        *args: Any,
        clipping: str = "auto",
        microbatch_size: int | None = None,
        self_check: bool = True,
        **kwargs: Any,
    ) -> None:
        if model_module.functional_init_arguments(args, kwargs):
            own: Any = type(self)
            self.__class__ = functional_form(own)
            Functional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)
        self._keep(PrivateState(clipping, microbatch_size, self_check))


class DPSequential(metaclass=_AnyPrivateModel):
    """A Sequential model that trains privately: `DPSequential(layers, ...)`.

    Args:
        *args: As `keras.Sequential`.
        clipping: See `privatize`.
        microbatch_size: See `privatize`.
        self_check: See `privatize`.
        **kwargs: As `keras.Sequential`.
    """

    plain = keras.Sequential

    def __new__(
        cls,
        *args: Any,
        clipping: str = "auto",
        microbatch_size: int | None = None,
        self_check: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Returns a privatized `keras.Sequential`."""
        return privatize(
            cls.plain(*args, **kwargs),
            clipping=clipping,
            microbatch_size=microbatch_size,
            self_check=self_check,
        )
