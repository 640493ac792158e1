"""Squared norms of gradients that are sums of outer products a_t ⊗ b_t.

Three ways, by cost:

* one step: ‖a‖²‖b‖²; with a scale (a²)ᵀ S² (b²); with a centre the expansion
  ‖s g‖² - 2⟨s² m, g⟩ + ‖s m‖², accumulated in float64 because it cancels;
* the Gram form Σ_{t,u} ⟨a_t, a_u⟩⟨b_t, b_u⟩ in float64, for few steps t;
* forming the gradients of some examples (or some rows of a large matrix) at a
  time, and dropping them.

Where terms of both signs are added up, a multiple of their rounding error is
added too: a norm may come out a little too large, never too small.
"""

from typing import NamedTuple

import tensorflow as tf

from tf_dpadaptive.clipping.layerwise import chunks
from tf_dpadaptive.clipping.layerwise.forms import MatrixView, Outer

MARGIN_32 = 1e-6
"""Bound on the rounding of a float32 sum, relative to Σ |terms|."""

MARGIN_64 = 1e-14
"""The same of a float64 sum."""

_ROUNDING_32 = 2.0**-22
"""What adding up a_t ⊗ b_t in float32 may add to the norm of the sum, relative
to Σ ‖a_t‖‖b_t‖."""

_GRAM_ROUNDING = 2.0**-16
"""Bound on the rounding of float32 inner products of long rows, relative to
‖a‖‖b‖; 180 · 2⁻²⁴ was the worst seen, with 30,000 to 100,000 equal entries."""

_MANY, _LONG = 9, 4096
"""Steps and entries of a row from which the bound holds (XLA adds up one after
the other in smaller products), and float64 takes too long."""

_TRAFFIC = 90
"""What writing and reading a float costs, in floating-point operations."""

_DOUBLE = 4
"""What the Gram form costs an operation, since it is in float64."""


class Local(NamedTuple):
    """Scale and centre of one variable, of its shape; None: 1 and 0."""

    scale: tf.Tensor | None
    centre: tf.Tensor | None

    @property
    def plain(self) -> bool:
        """Neither scale nor centre."""
        return self.scale is None and self.centre is None

    def of_matrices(self, view: MatrixView | None) -> "Local":
        """The same for gradients laid out as (groups, rows, columns)."""
        if view is None:
            return self
        return Local(*(None if t is None else view.to_matrix(t) for t in self))

    def forward(self, gradients: tf.Tensor) -> tf.Tensor:
        """S ⊙ (g - m), broadcast over examples."""
        if self.centre is not None:
            gradients = gradients - self.centre
        if self.scale is not None:
            gradients = gradients * self.scale
        return gradients


def norms_of_products(outer: Outer, local: Local) -> tf.Tensor:
    """Returns float32 (n,): squared norms of outer products alone."""
    if outer.steps == 1:
        if local.plain:
            return _product(outer)
        if local.centre is None:
            return _scaled_product(outer, local.scale)
        return _centred_product(outer, local)
    if local.plain and _gram_pays(outer):
        return _gram(outer)
    return _formed_in_tiles(outer, local)


def _product(outer: Outer) -> tf.Tensor:
    """Σ_g ‖a_g‖²‖b_g‖²; in float64 where squares leave float32's range."""
    narrow = _squares(outer, tf.float32)
    return tf.cond(
        _in_range(narrow),
        lambda: _joined(narrow) * (1 + MARGIN_32),
        lambda: tf.cast(_joined(_squares(outer, tf.float64)), tf.float32),
    )


def _in_range(squares: list[tf.Tensor]) -> tf.Tensor:
    """Whether no square has left float32's range.

    Squares below 1.2e-38 vanish: beside a sum of 1e-20 that is nothing, and
    with a factor of at most 1e4 it is nothing beside any clip norm.
    """
    return tf.reduce_all(
        [
            tf.reduce_all((s <= 1e8) & ((s >= 1e-20) | tf.equal(s, 0.0)))
            for s in squares
        ]
    )


def _squares(outer: Outer, kind: tf.DType) -> list[tf.Tensor]:
    """‖a_g‖² and ‖b_g‖² of one step, (n, groups) each."""
    return [
        tf.reduce_sum(tf.square(tf.cast(t, kind)), [2, 3])
        for t in (outer.left, outer.right)
    ]


def _joined(squares: list[tf.Tensor]) -> tf.Tensor:
    left, right = squares
    return tf.reduce_sum(left * right, 1)


def _scaled_product(outer: Outer, scale: tf.Tensor) -> tf.Tensor:
    """Σ_g (a_g²)ᵀ S_g² (b_g²); every term is positive."""
    square = tf.square(outer.view.to_matrix(scale))
    left, left_size = _unit(outer.left)
    right, right_size = _unit(outer.right)
    value = _through(tf.square(left), square, tf.square(right))
    size = tf.square(tf.cast(left_size * right_size, tf.float64))
    size = tf.reshape(size, [-1])
    return tf.cast(tf.cast(value, tf.float64) * size, tf.float32)


def _centred_product(outer: Outer, local: Local) -> tf.Tensor:
    """‖s g‖² - 2⟨s² m, g⟩ + ‖s m‖² in float64."""
    left, right = (tf.cast(t, tf.float64) for t in (outer.left, outer.right))
    centre = tf.cast(outer.view.to_matrix(local.centre), tf.float64)
    if local.scale is None:
        own = _joined(_squares(outer, tf.float64))
        weighted = centre
    else:
        scale = tf.cast(outer.view.to_matrix(local.scale), tf.float64)
        own = _through(tf.square(left), tf.square(scale), tf.square(right))
        weighted = tf.square(scale) * centre
    cross = 2 * _through(left, weighted, right)
    constant = tf.reduce_sum(weighted * centre)
    return with_margin([own, -cross, constant], MARGIN_64)


def _through(left: tf.Tensor, matrix: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Σ_g a_gᵀ M_g b_g for one step: (n,)."""
    groups, rows, columns = matrix.shape
    if groups == 1:
        left = tf.reshape(left, [-1, rows])
        right = tf.reshape(right, [-1, columns])
        return tf.reduce_sum(tf.matmul(left, matrix[0]) * right, 1)
    return tf.reduce_sum(tf.matmul(left, matrix) * right, [1, 2, 3])


def _unit(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Each example divided by its largest entry, and that entry."""
    size = tf.reduce_max(tf.abs(tensor), [1, 2, 3], keepdims=True)
    size = tf.where(size > 0, size, tf.ones_like(size))
    return tensor / size, size


def _gram(outer: Outer) -> tf.Tensor:
    """Σ_{t,u} ⟨a_t, a_u⟩⟨b_t, b_u⟩, some examples at a time.

    In float64: steps may cancel (a layer called on two inputs whose outputs
    are subtracted), and what is left is far below the rounding of float32.
    Where many long rows make that slow, float32 comes first.
    """
    groups, rows, columns = outer.view.matrix
    steps = outer.steps or 128
    each = 8 * groups * steps * (3 * steps + rows + columns)

    def wide() -> tf.Tensor:
        return chunks.over_examples(
            _gram_in_double, (outer.left, outer.right), each
        )

    # Steps that are unknown may be few.
    many = outer.steps is not None and outer.steps >= _MANY
    if not many or max(rows, columns) < _LONG or matmul_rounding():
        return wide()
    products = [
        tf.matmul(t, t, transpose_b=True) for t in (outer.left, outer.right)
    ]
    total = tf.reduce_sum(products[0] * products[1], [1, 2, 3])
    squares = [tf.linalg.diag_part(product) for product in products]
    sizes = tf.sqrt(squares[0] * squares[1])
    doubt = 2 * _GRAM_ROUNDING * tf.square(tf.reduce_sum(sizes, [1, 2]))
    sure = _in_range(squares) & tf.reduce_all(doubt <= 1e-3 * total)
    return tf.cond(sure, lambda: total + doubt, wide)


def _gram_in_double(tensors: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    left, right = (tf.cast(t, tf.float64) for t in tensors)
    products = tf.matmul(left, left, transpose_b=True) * tf.matmul(
        right, right, transpose_b=True
    )
    total = tf.reduce_sum(products, [1, 2, 3])
    sizes = tf.sqrt(tf.linalg.diag_part(products))
    margin = _ROUNDING_32 * tf.reduce_sum(sizes, [1, 2])
    norm = tf.sqrt(tf.maximum(total, 0)) + margin
    return tf.cast(tf.square(norm), tf.float32)


def matmul_rounding() -> float:
    """Bound on the relative error of norms and sums made by products.

    GPUs may round the factors of float32 matrix products to 10 bits (TF32).
    """
    if not tf.config.experimental.tensor_float_32_execution_enabled():
        return 0.0
    return 2.0**-9 if tf.config.list_physical_devices("GPU") else 0.0


def _formed_in_tiles(outer: Outer, local: Local) -> tf.Tensor:
    """Norms of formed gradients, some examples and matrix rows at a time."""
    groups, rows, columns = outer.view.matrix
    each = 4 * outer.view.size
    if each <= chunks.CHUNK_BYTES or groups > 1:
        outer = outer.wide()
        matrices = local.of_matrices(outer.view)
        return chunks.over_examples(
            lambda t: sum_of_squares(
                matrices.forward(tf.matmul(t[0], t[1], transpose_a=True))
            ),
            (outer.left, outer.right),
            each,
        )
    matrices = local.of_matrices(outer.view)
    tile = max(1, chunks.CHUNK_BYTES // (4 * columns))
    count = chunks.static_rows(outer.left)
    if count is not None:
        tile = max(64, tile // count)

    def function(tensors: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        left, right = tensors

        def one(start: tf.Tensor, width: int) -> tf.Tensor:
            piece = tf.matmul(
                left[..., start : start + width], right, transpose_a=True
            )
            piece = tf.ensure_shape(piece, [None, 1, width, columns])
            part = Local(
                *(
                    None if t is None else t[:, start : start + width]
                    for t in matrices
                )
            )
            return sum_of_squares(part.forward(piece))

        return chunks.over_tiles(one, rows, min(tile, rows))

    return chunks.over_examples(
        function, (outer.left, outer.right), 4 * columns * min(tile, rows)
    )


def sum_of_squares(gradients: tf.Tensor) -> tf.Tensor:
    """Returns (n,): the sum over all axes but the first."""
    axes = list(range(1, gradients.shape.rank))
    return tf.reduce_sum(tf.square(gradients), axes)


def with_margin(terms: list[tf.Tensor], margin: float) -> tf.Tensor:
    """Σ terms, made larger by what rounding may have taken away."""
    total, size = terms[0], tf.abs(terms[0])
    for term in terms[1:]:
        total = total + term
        size = size + tf.abs(term)
    return tf.cast(tf.maximum(total, 0) + margin * size, tf.float32)


def _gram_cost(outer: Outer) -> int:
    _, rows, columns = outer.view.matrix
    return 2 * _DOUBLE * (outer.steps or 128) ** 2 * (rows + columns)


def _gram_pays(outer: Outer) -> bool:
    """Whether the Gram form is cheaper than forming and dropping."""
    _, rows, columns = outer.view.matrix
    forming = (2 * (outer.steps or 128) + _TRAFFIC) * rows * columns
    return _gram_cost(outer) < forming


def forming_pays(outer: Outer, local: Local, small: bool) -> bool:
    """Whether to form all gradients once and keep them for the sum."""
    _, rows, columns = outer.view.matrix
    steps = outer.steps or 128
    if not small and rows * columns > 2 * steps * (rows + columns):
        return False
    gram = local.plain and _gram_cost(outer) < _TRAFFIC * rows * columns
    return not gram
