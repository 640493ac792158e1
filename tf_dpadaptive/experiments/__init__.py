"""Experiments: one runner, the sections of its configs, models, reports."""
