"""Per-example clipping layer by layer, at nearly the price of a plain step."""

from tf_dpadaptive.clipping.layerwise.engine import LayerwiseEngine
from tf_dpadaptive.clipping.layerwise.plan import NotLayerwise

__all__ = ["LayerwiseEngine", "NotLayerwise"]
