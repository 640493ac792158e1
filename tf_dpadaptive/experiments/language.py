"""Masked language models of keras-hub, from random weights or a preset."""

from typing import Any

import keras

from tf_dpadaptive.data.task import Task
from tf_dpadaptive.data.text import TextTask


def bert(
    task: Task,
    *,
    preset: str | None = None,
    num_layers: int = 2,
    hidden_dim: int = 128,
    num_heads: int = 2,
    intermediate_dim: int = 512,
    max_sequence_length: int = 512,
    dropout: float = 0.0,
) -> keras.Model:
    """keras-hub's `BertMaskedLM`; by default BERT-tiny from random weights.

    Args:
        task: Gives the size of the vocabulary and the length of an example.
        preset: Name of a keras-hub preset of BERT, or a folder that holds one.
            Its weights and sizes are taken. None draws random weights.
        num_layers: Transformer layers, >= 1.
        hidden_dim: Width, a multiple of `num_heads`.
        num_heads: Attention heads, >= 1.
        intermediate_dim: Width between the two dense layers of a block.
        max_sequence_length: Positions, at least those of an example.
        dropout: Share of activations that are dropped, in [0, 1).

    Returns:
        The model: its logits are (n, masked tokens, vocabulary). The output
        shares its weights with the token embedding.

    Raises:
        ValueError: If the data is no text, the preset has another
            vocabulary than the task, or examples are longer than the model
            has positions.
    """
    if not isinstance(task, TextTask):
        raise ValueError(
            "`model.name=bert` needs text: `data.name` must be text. "
            f"Received: {task.source}."
        )
    import keras_hub

    if preset is None:
        backbone: Any = keras_hub.models.BertBackbone(
            vocabulary_size=task.num_classes,
            num_layers=num_layers,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            intermediate_dim=intermediate_dim,
            max_sequence_length=max_sequence_length,
            dropout=dropout,
        )
    else:
        backbone = keras_hub.models.BertBackbone.from_preset(preset)
    if backbone.vocabulary_size != task.num_classes:
        raise ValueError(
            f"`model.preset` must have the vocabulary of the data. Received: "
            f"model.preset={preset!r} of {backbone.vocabulary_size} tokens, "
            f"data.vocabulary of {task.num_classes}. Give data.vocabulary the "
            "same preset."
        )
    if task.input_shape[0] > backbone.max_sequence_length:
        raise ValueError(
            "`data.sequence_length` must be at most "
            f"{backbone.max_sequence_length}, the positions of the model. "
            f"Received: data.sequence_length={task.input_shape[0]}."
        )
    return keras_hub.models.BertMaskedLM(backbone)
