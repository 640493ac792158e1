"""Every reason for refusal, collected and raised at once."""

import math
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tf_dpadaptive.accounting.ledger import Ledger
from tf_dpadaptive.optimizers.base import DPOptimizer
from tf_dpadaptive.optimizers.guard import REFUSED_ARGUMENTS
from tf_dpadaptive.plan import PrivacyPlan


def raise_all(reasons: Iterable[str], what: str) -> None:
    """Raises one ValueError that lists all reasons, if there are any."""
    reasons = list(reasons)
    if reasons:
        listed = "\n".join(f"  - {reason}" for reason in reasons)
        raise ValueError(f"{what} would break the privacy guarantee:\n{listed}")


def model_reasons(model: keras.Model) -> list[str]:
    """Returns what is wrong with the model itself."""
    reasons = []
    if _overrides(model, "train_step"):
        reasons.append(
            f"{type(model).__name__} has its own `train_step`, which the "
            "private step would have to replace. Move its loss into "
            "`compute_loss` and remove `train_step`."
        )
    for layer in model._flatten_layers(include_self=False, recursive=True):
        batch_norm = isinstance(layer, keras.layers.BatchNormalization)
        if batch_norm and layer.trainable:
            reasons.append(
                f"Layer {layer.name!r} is a BatchNormalization in training: "
                "it mixes the examples of a batch and keeps their raw "
                "statistics. Use GroupNormalization or LayerNormalization, "
                "or freeze it (`trainable = False`)."
            )
    for variable in model.variables:
        if getattr(variable, "overwrite_with_gradient", False):
            reasons.append(
                f"Variable {variable.path!r} is overwritten with its raw "
                "gradient (float8 training). Use another dtype policy."
            )
    strategy = model._distribute_strategy or tf.distribute.get_strategy()
    if strategy.num_replicas_in_sync > 1:
        reasons.append(
            f"{type(strategy).__name__} runs {strategy.num_replicas_in_sync} "
            "replicas: noise would be added once per replica. Train on one."
        )
    return reasons


def optimizer_reasons(optimizer: Any) -> list[str]:
    """Returns what is wrong with the optimizer of a privatized model."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return [
            "The optimizer is wrapped in a LossScaleOptimizer: the private "
            "clip must see unscaled gradients. Pass the DP optimizer itself "
            "(the automatic wrapping is switched off)."
        ]
    if not isinstance(optimizer, DPOptimizer):
        return [
            "A privatized model trains with DP optimizers only (see "
            "`tf_dpadaptive.optimizers`). Received: optimizer="
            f"{_shown(optimizer)}. Any Keras optimizer becomes private as "
            "`DPPostProcessing(optimizer, l2_norm_clip, plan)`."
        ]
    return [
        f"`{name}={getattr(optimizer, name)!r}` of the optimizer: {why}."
        for name, why in REFUSED_ARGUMENTS.items()
        if getattr(optimizer, name, None) is not None
    ]


def accounting_reasons(plan: PrivacyPlan) -> list[str]:
    """Returns why no ε can be had for a plan, asked before it trains.

    A plan without `num_examples` trains without an ε; that is its own choice.
    """
    if plan.num_examples is None or plan.noise_multiplier == 0:
        return []
    try:
        plan.event(plan.num_steps or 1)
    except ValueError as error:
        return [f"The plan's ε can't be computed: {error}"]
    return []


def adjacency_reasons(ledger: Ledger, plan: PrivacyPlan) -> list[str]:
    """Returns whether the plan's ε could not be added to what ran before."""
    other = [
        run.plan.adjacency
        for run in ledger.runs
        if run.plan.adjacency != plan.adjacency
    ]
    if not other:
        return []
    return [
        f"Earlier updates were taken under adjacency={other[0]!r}, and this "
        f"plan has adjacency={plan.adjacency!r}: their ε can't be added up. "
        "Use one adjacency for a model."
    ]


def penalty_reasons(model: keras.Model) -> list[str]:
    """Returns which weight regularizers look at more than the weights."""
    reasons = []
    for variable in model.trainable_variables:
        if variable.regularizer is None:
            continue
        spec = tf.TensorSpec(variable.shape, variable.dtype)
        graph = (
            tf.function(variable.regularizer, autograph=False)
            .get_concrete_function(spec)
            .graph
        )
        size = max(1000, math.prod(variable.shape) ** 2)
        # Keras' own regularizers capture their strength, a scalar.
        captured = [
            outer
            for outer, _ in graph.captures
            if outer.dtype == tf.resource or outer.shape.num_elements() != 1
        ]
        if captured or _largest_constant(graph) > size:
            reasons.append(
                f"The regularizer of variable {variable.path!r} looks at "
                "tensors other than the variable: if they are data, their "
                "gradient would be applied without clip and noise. Write it "
                "as a function of the weights alone."
            )
    return reasons


def _largest_constant(graph: Any) -> int:
    sizes = [
        op.outputs[0].shape.num_elements() or 0
        for op in graph.get_operations()
        if op.type == "Const"
    ]
    return max(sizes, default=0)


def variable_reasons(model: Any) -> list[str]:
    """Returns whether the optimizer was built for other variables."""
    optimizer = model.optimizer
    if not optimizer.built:
        return []
    built = [id(_raw(v)) for v in optimizer._trainable_variables]
    now = [id(_raw(v)) for v in model.trainable_variables]
    if built == now:
        return []
    return [
        f"The model has {len(now)} trainable variables, and they are not "
        f"the {len(built)} that the optimizer was built for (layers were "
        "added, replaced, frozen or unfrozen). Call `compile` again with a "
        "new optimizer."
    ]


def _raw(variable: Any) -> Any:
    return getattr(variable, "value", variable)


def _overrides(model: keras.Model, name: str) -> bool:
    """Whether a class below Keras' own, or the object, defines `name`."""
    if name in vars(model):
        return True
    plain = getattr(keras.Model, name)
    for cls in type(model).__mro__:
        if name in vars(cls) and "private_training" not in vars(cls):
            return vars(cls)[name] is not plain
    return False


def _shown(optimizer: Any) -> str:
    if optimizer is None or isinstance(optimizer, (str, dict)):
        return repr(optimizer)
    return type(optimizer).__name__
