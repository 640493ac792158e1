"""A data set of an experiment: arrays, and where they came from.

A `Task` says which data it really holds, and under which sha256: a result
must never be set beside numbers of another data set by mistake. Nothing here
computes anything from the data that would leak into a model: scaling uses
constants of the file format, never a mean or a variance of the examples.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

    from tf_dpadaptive.plan import PrivacyPlan


class DataUnavailableError(RuntimeError):
    """The data set is neither on this machine nor to be had."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A classification task held in memory.

    Attributes:
        source: Which data this is, exactly: what reports and plots print.
        x_train: Training inputs, shape (num_train, ...).
        y_train: Training labels, integers of shape (num_train,).
        x_test: Test inputs, shape (num_test, ...).
        y_test: Test labels, integers of shape (num_test,).
        num_classes: Number of classes.
        max_value: Largest value an input can take: 255 for 8-bit images. A
            constant of the file format, not of the examples.
        files: sha256 of each file that was read, by name.
        public: Inputs and labels that are no part of the training set and
            that nobody needs to protect; for methods with side information.

    Raises:
        ValueError: If inputs and labels do not fit together.
    """

    source: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    max_value: float = 1.0
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    public: tuple[np.ndarray, np.ndarray] | None = None

    #: Rows that are evaluated at once.
    test_batch_size: ClassVar[int] = 500
    #: What is measured beside the loss.
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if not len(x) or y.shape != self._label_shape(x):
                raise ValueError(
                    f"`y_{part}` must hold one label for each of the examples "
                    f"of `x_{part}`, of which there must be one at least. "
                    f"Received: x_{part}.shape={x.shape}, "
                    f"y_{part}.shape={y.shape}."
                )
            if y.min() < 0 or y.max() >= self.num_classes:
                raise ValueError(
                    f"Labels must lie in 0..num_classes-1. Received: "
                    f"num_classes={self.num_classes}, y_{part} from {y.min()} "
                    f"to {y.max()}."
                )

    def _label_shape(self, x: np.ndarray) -> tuple[int, ...]:
        return (len(x),)

    def batches(
        self, plan: "PrivacyPlan", steps: int | None = None
    ) -> "tf.data.Dataset":
        """Returns the training batches of a plan.

        Args:
            plan: The plan that samples.
            steps: Updates in one pass; None: the plan's.
        """
        return plan.batches(self.x_train, self.y_train, steps=steps)

    def examples(self, part: str, most: int | None = None) -> tuple[Any, ...]:
        """Returns inputs and labels as Keras takes them; not for training.

        Args:
            part: "train", "test" or "public".
            most: How many of the first examples; None: all.

        Returns:
            (x, y), or (x, y, sample_weight).
        """
        x, y = self.x_train, self.y_train
        if part == "test":
            x, y = self.x_test, self.y_test
        elif part == "public" and self.public is not None:
            x, y = self.public
        return x[:most], y[:most]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.x_train.shape[1:]

    def head(
        self, num_train: int | None = None, num_test: int | None = None
    ) -> "Task":
        """Returns the task cut down to its first examples.

        Args:
            num_train: Training examples to keep; None keeps all.
            num_test: Test examples to keep; None keeps all.

        Returns:
            A task whose source says that it is a part.

        Raises:
            ValueError: If there are not that many examples.
        """
        if num_train is None and num_test is None:
            return self
        train = self._within("num_train", num_train, len(self.x_train))
        test = self._within("num_test", num_test, len(self.x_test))
        return dataclasses.replace(
            self,
            source=f"{self.source}, first {train} / {test} examples",
            x_train=self.x_train[:train],
            y_train=self.y_train[:train],
            x_test=self.x_test[:test],
            y_test=self.y_test[:test],
        )

    def _within(self, name: str, keep: int | None, most: int) -> int:
        kept = most if keep is None else keep
        if not 1 <= kept <= most:
            raise ValueError(
                f"`{name}` must lie in 1..{most}, the examples that "
                f"{self.source} has. Received: {name}={kept}."
            )
        return kept

    def with_public(self, num_public: int | None) -> "Task":
        """Returns the task with its first examples declared public.

        Args:
            num_public: Examples taken out of the training set, or None.

        Returns:
            A task whose source says so.

        Raises:
            ValueError: If no training example would be left.
        """
        if num_public is None:
            return self
        if not 1 <= num_public < len(self.x_train):
            raise ValueError(
                f"`num_public` must lie in 1..{len(self.x_train) - 1}. "
                f"Received: num_public={num_public}."
            )
        x, y = self.x_train, self.y_train
        return dataclasses.replace(
            self,
            source=f"{self.source}, {num_public} of them taken as public",
            x_train=x[num_public:],
            y_train=y[num_public:],
            public=(x[:num_public], y[:num_public]),
        )
