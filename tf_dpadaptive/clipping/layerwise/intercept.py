"""One forward pass in which the calls of layers with weights are intercepted.

While a model runs inside `Interception`, each layer's `call` is wrapped. Inside
a unit (see `plan`) the weights it accounts for read as
`stop_gradient(variable)`, and what the call computes is recorded and watched,
so that one backward pass to these tensors gives all that the rules need.

Whatever else is read of a trainable variable is logged with the layer that read
it. The proof that nothing is missed is the tape's: see `proof`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras.src import backend
from tensorflow.python.eager import record

from tf_dpadaptive.clipping.layerwise.plan import NotLayerwise, Plan
from tf_dpadaptive.clipping.layerwise.registry import Rule, Use
from tf_dpadaptive.clipping.layerwise.replay import Surroundings


class Unit(NamedTuple):
    """A use of a layer, and how its weights are accounted for.

    Attributes:
        use: The call.
        rule: Its rule, or None for the fallback.
        claimed: The variables it accounts for.
        surroundings: What a replay of the call needs.
        call: The layer's own call.
        read: The claimed variables, by `id`, that the call read.
    """

    use: Use
    rule: Rule | None
    claimed: tuple[keras.Variable, ...]
    surroundings: Surroundings
    call: Callable[..., Any]
    read: set[int]


class Frame(NamedTuple):
    """A layer that is being called."""

    layer: Any
    reachable: bool


class Interception:
    """Context in which the calls of a model's layers are intercepted.

    Args:
        model: The model.
        scope: The stateless scope in which it runs; trainable variables must
            be mapped.
        plan: Which layers are units.
        tape: The tape that watches what units compute.
    """

    def __init__(
        self,
        model: keras.Model,
        scope: keras.StatelessScope,
        plan: Plan,
        tape: tf.GradientTape,
    ) -> None:
        self._model = model
        self._plan = plan
        self._tape = tape
        self._variables = {id(v): v for v in model.trainable_variables}
        self._mapping = _LoggedReads(scope.state_mapping, self._log)
        scope.state_mapping = self._mapping
        self._constant_of: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        self._constants: set[int] = set()
        self._graph = _graph()
        self._stack: list[Frame] = []
        self._covered: set[int] = set()
        self._readers: dict[int, set[int]] = {}
        self._wrapped: list[tuple[Any, str]] = []
        self.units: list[Unit] = []
        self.texts: list[tf.Tensor] = []
        self.refusal = ""
        self.reads: dict[int, list[Any]] = {}

    def __enter__(self) -> "Interception":
        for layer in self._model._flatten_layers():
            for name in ("call", "quantized_call"):
                original = getattr(layer, name, None)
                if original is None or name in vars(layer):
                    continue
                wrapped = functools.partial(
                    self._call, layer, original, name == "call"
                )
                vars(layer)[name] = functools.wraps(original)(wrapped)
                self._wrapped.append((layer, name))
        return self

    def __exit__(self, *exception: object) -> None:
        for layer, name in self._wrapped:
            del vars(layer)[name]
        self._wrapped.clear()
        left = {id(self._mapping[key]) for key in self._variables}
        if exception[0] is None and left & self._constants:
            raise RuntimeError("A weight still reads as a constant.")

    def _call(
        self,
        layer: Any,
        original: Callable[..., Any],
        usual: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Stands in for a layer's `call`."""
        if not self._wrapped:  # a recomputation after the pass
            return original(*args, **kwargs)
        frame = Frame(layer, self._reachable(layer))
        self._stack.append(frame)
        try:
            rule = self._plan.rule(layer) if usual else None
            claimed = self._claims(frame, rule)
            if not claimed:
                outputs = original(*args, **kwargs)
                if isinstance(layer, keras.layers.TextVectorization):
                    outputs = self._text(layer, args, outputs)
                return outputs
            return self._unit(layer, original, rule, claimed, args, kwargs)
        finally:
            self._stack.pop()

    def _claims(
        self, frame: Frame, rule: Rule | None
    ) -> tuple[keras.Variable, ...]:
        """The variables that this call has to account for."""
        if not frame.reachable:
            return ()
        if rule is not None and rule.whole:
            own = {id(v) for v in frame.layer.trainable_variables}
        elif rule is not None:
            own = {id(v) for v in frame.layer._trainable_variables}
        else:
            own = set(self._plan.fallbacks.get(id(frame.layer), ()))
        own -= self._covered
        return tuple(v for key, v in self._variables.items() if key in own)

    def _unit(
        self,
        layer: Any,
        original: Callable[..., Any],
        rule: Rule | None,
        claimed: tuple[keras.Variable, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Runs a call whose weights are read without a gradient."""
        surroundings = Surroundings.now(self._mapping)

        def again(replaced: dict[int, tf.Tensor], *inputs: Any) -> Any:
            arguments, others = args, kwargs
            if inputs and args:
                arguments = (*inputs, *args[1:])
            elif inputs:
                others = {**kwargs, next(iter(kwargs)): inputs[0]}
            with surroundings.again(replaced):
                return original(*arguments, **others)

        use = Use(layer, args, kwargs, surroundings.values, again)
        unit = Unit(use, rule, claimed, surroundings, original, set())
        self.units.append(unit)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._stopping(unit))
            before = None if rule is None else rule.before
            if before is not None and getattr(layer, before, None) is not None:
                stack.enter_context(self._tapped(layer, before, use))
                return original(*args, **kwargs)
            outputs = original(*args, **kwargs)
        return tf.nest.map_structure(lambda t: self._record(t, use), outputs)

    @contextlib.contextmanager
    def _stopping(self, unit: Unit) -> Iterator[None]:
        """Lets claimed variables read as constants.

        A fallback (or a rule for all) accounts for whatever happens inside:
        it hides them from inner units.
        """
        mapping, readers, covered = self._mapping, self._readers, self._covered
        saved = {id(v): mapping[id(v)] for v in unit.claimed}
        stopped = {key: self._constant(value) for key, value in saved.items()}
        mapping.update(stopped)
        self._readers = {**readers, **dict.fromkeys(saved, unit.read)}
        if unit.rule is None or unit.rule.whole:
            self._covered = covered | set(saved)
        try:
            yield
        finally:
            # What a layer itself puts into a variable stays there.
            for key, value in stopped.items():
                if mapping[key] is value:
                    mapping[key] = saved[key]
            self._readers, self._covered = readers, covered

    def _constant(self, value: tf.Tensor) -> tf.Tensor:
        """The value without its gradient."""
        if id(value) in self._constants:
            return value
        if id(value) not in self._constant_of:
            constant = tf.stop_gradient(value)
            self._constant_of[id(value)] = (value, constant)
            self._constants.add(id(constant))
        return self._constant_of[id(value)][1]

    @contextlib.contextmanager
    def _tapped(self, layer: Any, name: str, use: Use) -> Iterator[None]:
        """Records what enters the callable attribute `name` of a layer."""
        function = vars(layer)[name]

        def tap(inputs: tf.Tensor, *args: Any, **kwargs: Any) -> Any:
            return function(self._record(inputs, use), *args, **kwargs)

        vars(layer)[name] = tap
        try:
            yield
        finally:
            vars(layer)[name] = function

    def _record(self, tensor: Any, use: Use) -> Any:
        """Watches what a unit computed; returns it."""
        if not tf.is_tensor(tensor) or not tensor.dtype.is_floating:
            return tensor
        mask = backend.get_keras_mask(tensor)
        tensor = tf.identity(tensor)
        if mask is not None:
            backend.set_keras_mask(tensor, mask)
        self._tape.watch(tensor)
        use.targets.append(tensor)
        return tensor

    def _text(self, layer: Any, args: tuple[Any, ...], outputs: Any) -> Any:
        """Gives back the number of rows where text processing forgets it.

        Rules need to see that what a layer takes has a row an example.
        Strings are split into ragged tensors, whose shapes tracing does not
        know.
        """
        rows = getattr(args[0] if args else None, "shape", (None,))[:1]
        if not tf.is_tensor(outputs) or None in outputs.shape[1:]:
            self.refusal = (
                f"Layer {layer.name!r} ({type(layer).__name__}) makes rows as "
                "long as the longest of the batch. Set its "
                "`output_sequence_length`."
            )
            return outputs
        outputs = tf.ensure_shape(outputs, [*rows, *outputs.shape[1:]])
        self.texts.append(outputs)
        return outputs

    def _reachable(self, layer: Any) -> bool:
        """Whether tensors of a call made now can be differentiated."""
        return (
            id(layer) not in self._plan.opaque
            and _graph() is self._graph
            and record.could_possibly_record()
        )

    def _log(self, key: int, value: Any) -> None:
        """Notes which layer reads a variable that no unit accounts for."""
        if key not in self._variables:
            return
        if id(value) in self._constants:
            self._readers[key].add(key)
            return
        if not record.could_possibly_record():
            raise NotLayerwise(
                f"Variable {self._variables[key].path!r} is read where "
                "nothing is recorded (`tf.recompute_grad`, say): its gradient "
                "would be lost. Bound memory by `microbatch_size` instead."
            )
        layers = [f.layer for f in self._stack if f.reachable]
        self.reads.setdefault(key, []).append(layers[-1] if layers else None)


class _LoggedReads(dict):
    """A scope's values, which tells who reads them."""

    def __init__(
        self,
        values: Mapping[int, Any],
        log: Callable[[int, Any], None],
    ) -> None:
        super().__init__(values)
        self._log = log

    def get(self, key: int, default: Any = None) -> Any:
        value = super().get(key, default)
        self._log(key, value)
        return value


def _graph() -> Any:
    """The graph being built; None when executing eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
