"""Saving, loading and copying a private model, and what becomes of its ledger.

`.keras` holds optimizer and ledger; a weights file neither.
"""

import logging
from typing import Any

import keras

from tf_dpadaptive.accounting.ledger import Ledger

logger = logging.getLogger("tf_dpadaptive")


class PrivateSaving:
    """The part of `PrivateTraining` that concerns files; a mixin."""

    #: The class before `privatize`; None for the subclass forms.
    plain_class: Any = None

    compiled: bool
    built: bool
    ledger: Ledger

    def load_weights(self, *args: Any, **kwargs: Any) -> None:
        """Loads weights, as `keras.Model.load_weights`.

        Args:
            *args: As in Keras.
            **kwargs: As in Keras.

        Privacy: a weights file holds no ledger. What the training of these
            weights has spent is in no ε that this model states.
        """
        logger.warning(
            "load_weights: a weights file holds no ledger, and what its "
            "weights have spent will be in no ε of this model. To keep the "
            "ledger, save the model as .keras, or use `checkpoint.save` and "
            "`restore`."
        )
        super().load_weights(*args, **kwargs)  # type: ignore[misc]

    def get_compile_config(self) -> Any:
        """Returns Keras' configuration, with the optimizer and its ledger.

        Saving as legacy .h5 takes the optimizer out of it, for good.
        """
        if self.compiled:
            self._compile_config.config["optimizer"] = self.optimizer
            if self.ledger.updates and self._loads_uncompiled():
                logger.warning(
                    "Keras loads %s without its optimizer, and so without its "
                    "ledger, since the class has a `compile` of its own: what "
                    "this model has spent will not be known. Keep "
                    "`privacy_statement()` with the file; to train on, use "
                    "`checkpoint.save` and `restore`.",
                    type(self).__name__,
                )
        return super().get_compile_config()  # type: ignore[misc]

    def _loads_uncompiled(self) -> bool:
        """Whether Keras will not compile a saved copy (keras-hub's tasks)."""
        plain = self.plain_class
        return plain is not None and plain.compile is not keras.Model.compile

    def compile_from_config(self, config: Any) -> None:
        """Compiles a loaded model, with the ledger that was saved."""
        config = keras.saving.deserialize_keras_object(config)
        self.compile(**config)
        if self.built:
            self.optimizer.build(self.trainable_variables)

    def __reduce__(self) -> Any:
        """Copies and pickles as Keras does, by the saved form.

        The copy is an un-privatized model whose DP optimizer keeps the ledger,
        not the secret, and raises until `privatize`.
        """
        load, saved = super().__reduce__()  # type: ignore[misc]
        if self.plain_class is not None:
            load = self.plain_class._unpickle_model
        return load, saved
