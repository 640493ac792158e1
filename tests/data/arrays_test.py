"""Arrays as batches: shapes, kinds, padding, augmentation."""

import numpy as np
import pytest
import tensorflow as tf

from tf_dpadaptive.batch import Batch
from tf_dpadaptive.data.arrays import as_examples, gather, map_examples

ROWS = np.array([3, 1, 0, 0], np.int64)


def two_of(x, y=None, sample_weight=None, examples=5):
    made = as_examples(x, y, sample_weight, examples)
    return gather(made, tf.constant(ROWS), tf.constant(2))


def dataset(x, y=None, sample_weight=None):
    made = as_examples(x, y, sample_weight, 5)
    rows = tf.data.Dataset.from_tensors((ROWS, np.int32(2)))
    return rows.map(lambda rows, count: gather(made, rows, count))


def mapped(map_fn, *arrays):
    return next(iter(map_examples(dataset(*arrays), map_fn, 4, 5)))


class TestAsExamples:
    def test_floats_become_floatx_and_others_stay(self):
        made = as_examples(
            np.arange(5.0), np.arange(5), np.ones(5, np.float16), 5
        )
        assert made.x.dtype == tf.float32
        assert made.y.dtype == tf.int64
        assert made.sample_weight.dtype == tf.float32
        assert made.padding is None

    def test_tensors_lists_and_dicts(self):
        made = as_examples(
            {"a": tf.ones([5, 2]), "b": [np.zeros(5), np.ones(5)]},
            None,
            None,
            5,
        )
        assert isinstance(made.x["b"], tuple)
        assert made.x["a"].shape == (5, 2)

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [
            ((np.zeros(4), None, None), "`x`"),
            ((np.zeros(5), np.zeros(6), None), "`y`"),
            ((np.zeros(5), None, np.zeros(1)), "`sample_weight`"),
            (({"a": np.zeros(5), "b": np.zeros(4)}, None, None), "`x`"),
            ((np.float32(1.0), None, None), "`x`"),
            ((None, None, None), "`x`"),
        ],
    )
    def test_other_sizes_are_refused_by_name(self, arguments, name):
        with pytest.raises(ValueError, match=name):
            as_examples(*arguments, 5)

    @pytest.mark.parametrize(
        "x",
        [
            "text",
            5,
            ["a", "b", "c", "d", "e"],
            tf.ragged.constant([[1], [2, 3], [], [4], [5]]),
            tf.sparse.from_dense(np.eye(5)),
        ],
    )
    def test_what_is_no_array_is_refused(self, x):
        with pytest.raises(TypeError, match="`x"):
            as_examples(x, None, None, 5)


class TestGather:
    def test_examples_first_then_zeros(self):
        batch = two_of(np.arange(10.0).reshape(5, 2) + 1, np.arange(5) + 1)
        assert batch.x.numpy().tolist() == [[7, 8], [3, 4], [0, 0], [0, 0]]
        assert batch.y.numpy().tolist() == [4, 2, 0, 0]
        assert batch.padding.numpy().tolist() == [False, False, True, True]
        assert batch.sample_weight is None

    @pytest.mark.parametrize("kind", ["U3", object, "S3"])
    def test_strings_are_padded_with_empty_strings(self, kind):
        batch = two_of(np.array(["a", "b", "c", "d", "e"]).astype(kind))
        assert batch.x.numpy().tolist() == [b"d", b"b", b"", b""]

    def test_padding_hides_what_it_points_at(self):
        x = np.array([np.nan, 1.0, 2.0, 3.0, 4.0])  # row 0 fills the padding
        assert two_of(x).x.numpy().tolist() == [3, 1, 0, 0]

    def test_no_examples_at_all(self):
        made = as_examples(np.ones(5), None, None, 5)
        batch = gather(made, tf.zeros([4], tf.int64), tf.constant(0))
        assert batch.padding.numpy().all()
        assert not batch.x.numpy().any()


class TestMapExamples:
    X = np.arange(10.0).reshape(5, 2) + 1
    Y = np.arange(5) + 1
    W = np.arange(5.0) + 1

    def test_one_value_in_one_value_out(self):
        batch = mapped(lambda x: tf.reduce_sum(x), self.X)
        assert isinstance(batch, Batch)
        assert batch.x.numpy().tolist() == [15, 7, 0, 0]
        assert batch.x.shape == (4,)
        assert batch.y is None

    def test_pairs_and_triples(self):
        batch = mapped(lambda x, y: (x, y * 10), self.X, self.Y)
        assert batch.y.numpy().tolist() == [40, 20, 0, 0]
        batch = mapped(lambda x, y, w: (x, y, w + 1), self.X, self.Y, self.W)
        assert batch.sample_weight.numpy().tolist() == [5, 3, 0, 0]
        batch = mapped(lambda x, y, w: (x, y, 2 * w), self.X, None, self.W)
        assert batch.y is None
        assert batch.sample_weight.numpy().tolist() == [8, 4, 0, 0]

    def test_structures_and_strings(self):
        text = np.array(["a", "b", "c", "d", "e"])
        batch = mapped(
            lambda x: {"upper": tf.strings.upper(x["t"]), "n": x["n"] + 1},
            {"t": text, "n": self.Y},
        )
        assert batch.x["upper"].numpy().tolist() == [b"D", b"B", b"", b""]
        assert batch.x["n"].numpy().tolist() == [5, 3, 0, 0]

    def test_sees_one_example_and_never_padding(self):
        def checked(x):
            assert x.shape == (2,)
            with tf.control_dependencies([tf.debugging.assert_positive(x)]):
                return 1 / x

        batch = mapped(checked, self.X)
        assert np.isfinite(batch.x.numpy()).all()
        assert not batch.x.numpy()[2:].any()

    # AutoGraph of TensorFlow 2.21 on Python 3.13.
    @pytest.mark.filterwarnings("ignore:.*___pyct_anno:DeprecationWarning")
    def test_may_branch_on_its_example(self):
        def branching(x):
            if tf.reduce_sum(x) > 10:
                x = -x
            return x

        batch = mapped(branching, self.X)
        assert batch.x.numpy().tolist() == [[-7, -8], [3, 4], [0, 0], [0, 0]]

    def test_no_examples_at_all(self):
        made = as_examples(self.X, None, None, 5)
        empty = tf.data.Dataset.from_tensors(
            (np.zeros(4, np.int64), np.int32(0))
        ).map(lambda rows, count: gather(made, rows, count))
        batch = next(iter(map_examples(empty, lambda x: x + 1, 4, 5)))
        assert batch.x.numpy().tolist() == [[0, 0]] * 4

    @pytest.mark.parametrize(
        "map_fn", [lambda x, y: x, lambda x, y: (x, y, y), lambda x, y: [x, y]]
    )
    def test_another_number_of_values_is_refused(self, map_fn):
        with pytest.raises(ValueError, match="tuple"):
            mapped(map_fn, self.X, self.Y)

    def test_a_shape_that_varies_is_refused(self):
        with pytest.raises(ValueError, match="fixed shape"):
            mapped(lambda x: tf.boolean_mask(x, x > 2), self.X)

    @pytest.mark.parametrize("axis", ["slice", "whole"])
    def test_a_variable_that_is_written_is_refused(self, axis):
        kept = tf.Variable(tf.zeros([2]))

        def keeps(x):
            place = kept[:1] if axis == "slice" else kept
            place.assign(x[:1] if axis == "slice" else x)
            return x

        with pytest.raises(ValueError, match="must not keep state"):
            mapped(keeps, self.X)

    @pytest.mark.parametrize("kind", ["py", "numpy", "queue", "map_stage"])
    def test_python_and_queues_are_refused(self, kind):
        queue = tf.queue.FIFOQueue(9, [tf.float32], [[2]])

        def keeps(x):
            if kind == "py":
                return tf.ensure_shape(
                    tf.py_function(lambda t: t, [x], tf.float32), [2]
                )
            if kind == "numpy":
                return tf.ensure_shape(
                    tf.numpy_function(lambda t: t, [x], tf.float32), [2]
                )
            if kind == "queue":
                queue.enqueue(x)
                return queue.dequeue()
            tf.raw_ops.Stage(values=[x])
            return tf.raw_ops.Unstage(dtypes=[tf.float32])[0]

        with pytest.raises(ValueError, match="must not keep state"):
            mapped(keeps, self.X)

    @pytest.mark.parametrize(
        "kind", ["array", "tensor", "transposed", "variable", "dataset"]
    )
    def test_rows_of_others_are_refused(self, kind):
        others = self.X.astype(np.float32)
        tensor, variable = tf.constant(others), tf.Variable(others)
        rows = tf.data.Dataset.from_tensor_slices(others)

        def mixes(x):
            if kind == "dataset":
                return x + rows.reduce(tf.zeros([2]), lambda a, b: a + b)
            given = {"array": others, "tensor": tensor, "variable": variable}
            if kind == "transposed":
                return x + tf.transpose(tf.constant(others.T))[0]
            some = tf.experimental.numpy.random.randint(0, 5)
            return x + tf.gather(given[kind], some)

        with pytest.raises(ValueError, match="enter the rows of others"):
            mapped(mixes, self.X)

    def test_tables_and_small_constants_are_not(self):
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.range(20, dtype=tf.int64), tf.range(20, dtype=tf.int64) * 2
            ),
            -1,
        )
        mean = tf.constant([1.0, 2.0])

        def looks_up(x, y):
            return x - mean, table.lookup(y)

        batch = mapped(looks_up, self.X, self.Y)
        assert batch.y.numpy().tolist() == [8, 4, 0, 0]

    def test_draws_are_fresh_for_each_example_and_batch(self):
        def draws(x):
            return x + tf.random.uniform([2])  # noqa: TID251

        twice = dataset(np.zeros((5, 2))).repeat(2)
        made = map_examples(twice, draws, 4, 5)
        taken = np.array([batch.x.numpy()[:2] for batch in made])
        assert len(np.unique(taken)) == 8
