"""Clipping: the sum of clipped per-example gradients, by several engines."""
