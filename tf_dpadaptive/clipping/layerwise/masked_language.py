"""The output head of keras-hub's masked language models."""

from tf_dpadaptive.clipping.layerwise.forms import Formed, sum_to
from tf_dpadaptive.clipping.layerwise.registry import (
    Contributions,
    NotCovered,
    Use,
    rule,
)


@rule(
    "keras_hub.src.layers.modeling.masked_lm_head.MaskedLMHead",
    before="activation",
)
def masked_language_head(use: Use) -> Contributions:
    """The bias over the vocabulary; the rest are layers of their own."""
    if use.layer.token_embedding is None:
        raise NotCovered("its output kernel is not a layer of its own")
    bias = use.layer._bias
    yield bias, Formed(sum_to(use.gradient, bias.shape))
