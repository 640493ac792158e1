"""Tests of the data sets of the experiments. Nothing is downloaded."""

import hashlib
import socket
import subprocess
import sys
import urllib.request

import ml_collections
import numpy as np
import pytest
import tensorflow as tf

from tf_dpadaptive.data import tasks


def section(name, **values):
    fields = dict.fromkeys(("dir", "num_train", "num_test", "num_public"))
    return ml_collections.ConfigDict({"name": name} | fields | values)


def task(train=6, test=3, classes=3):
    x = np.arange(train + test, dtype=np.float32)[:, np.newaxis]
    y = np.arange(train + test) % classes
    return tasks.Task(
        "numbers", x[:train], y[:train], x[train:], y[train:], classes
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A TFDS data_dir with sets that TFDS does not know: PNG and JPEG."""
    import tensorflow_datasets as tfds

    path = tmp_path_factory.mktemp("tfds")
    pixels = np.random.default_rng(0).integers(0, 256, (7, 16, 16, 3), np.uint8)

    def rows(images):
        return tf.data.Dataset.from_tensor_slices(
            {"image": images, "label": np.arange(len(images)) % 4}
        )

    for encoding in ("png", "jpeg"):
        tfds.dataset_builders.store_as_tfds_dataset(
            name=f"tiny_{encoding}",
            version="1.0.0",
            data_dir=path,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(
                        shape=(16, 16, 3), encoding_format=encoding
                    ),
                    "label": tfds.features.ClassLabel(num_classes=4),
                }
            ),
            split_datasets={
                "train": rows(pixels[:5]),
                "test": rows(pixels[5:]),
            },
            disable_shuffling=True,
        )
    return path, pixels


def test_digits_are_split_once_and_for_all():
    digits = tasks.load(section("digits"))
    assert digits.x_train.shape == (1437, 8, 8, 1)
    assert digits.x_test.shape == (360, 8, 8, 1)
    assert digits.num_classes == 10
    assert digits.x_train.max() == digits.max_value
    # If this changes, accuracies from before can't be compared any more.
    labels = np.concatenate([digits.y_train, digits.y_test])
    assert (
        hashlib.sha256(labels.astype(np.uint8))
        .hexdigest()
        .startswith("8cc9f7e0d4be73d0")
    )


def test_tfds_folder_is_read_exactly_with_its_hashes(folder):
    path, pixels = folder
    png = tasks.load(section("tiny_png", dir=str(path)))
    np.testing.assert_array_equal(png.x_train, pixels[:5])
    np.testing.assert_array_equal(png.x_test, pixels[5:])
    np.testing.assert_array_equal(png.y_train, [0, 1, 2, 3, 0])
    assert png.num_classes == 4
    assert png.max_value == 255
    assert png.source == "TFDS data set 'tiny_png'"
    read = path / "tiny_png" / "1.0.0"
    assert set(png.files) == {file.name for file in read.iterdir()}
    for name, digest in png.files.items():
        assert hashlib.sha256((read / name).read_bytes()).hexdigest() == digest


def test_jpeg_is_decoded_accurately_and_says_so(folder):
    path, pixels = folder
    jpeg = tasks.load(section("tiny_jpeg", dir=str(path)))
    assert jpeg.source.endswith("decoded with the accurate DCT")
    encoded = [tf.io.encode_jpeg(image) for image in pixels[:5]]
    accurate, fast = (
        np.stack([tf.io.decode_jpeg(e, dct_method=m) for e in encoded])
        for m in ("INTEGER_ACCURATE", "INTEGER_FAST")
    )
    assert (accurate != fast).any()
    np.testing.assert_array_equal(jpeg.x_train, accurate)


def test_lossy_cifar_is_never_called_cifar10():
    assert tasks._SOURCES["cifar10_jpeg"] != tasks._SOURCES["cifar10"]
    assert "lossy" in tasks._SOURCES["cifar10_jpeg"]


def test_no_data_and_no_network_is_one_error_with_the_ways(
    tmp_path, monkeypatch
):
    def unknown(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(urllib.request, "getproxies", dict)
    with pytest.raises(tasks.DataUnavailableError) as caught:
        tasks.load(section("mnist", dir=str(tmp_path)))
    text = str(caught.value)
    assert str(tmp_path) in text
    assert "Name or service not known" in text
    for way in (
        "--config.data.dir=FOLDER",
        "download_and_prepare",
        "task=",
        "binaries.quickstart",
    ):
        assert way in text
    # One error: no chain of somebody else's tracebacks in front of it.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_download_is_announced(tmp_path, monkeypatch, caplog):
    def stop(_):
        raise OSError("stop here")

    monkeypatch.setattr(tasks, "_check_hosts", stop)
    with (
        caplog.at_level("WARNING", logger="absl"),
        pytest.raises(tasks.DataUnavailableError, match="stop here"),
    ):
        tasks.load(section("mnist", dir=str(tmp_path)))
    assert "will download" in caplog.text


def test_unknown_name_is_refused_with_the_ways(tmp_path):
    with pytest.raises(tasks.DataUnavailableError, match="'mnsit'"):
        tasks.load(section("mnsit", dir=str(tmp_path)))


def test_head_keeps_the_first_and_says_so():
    part = task().head(4, 2)
    assert part.source == "numbers, first 4 / 2 examples"
    np.testing.assert_array_equal(part.x_train[:, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(part.x_test[:, 0], [6, 7])


@pytest.mark.parametrize("num_train", [0, -1, 7])
def test_head_refuses_what_is_not_there(num_train):
    with pytest.raises(ValueError, match=f"num_train={num_train}"):
        task().head(num_train)


def test_public_examples_leave_the_training_set():
    split = task().with_public(2)
    assert split.public is not None
    np.testing.assert_array_equal(split.public[0][:, 0], [0, 1])
    np.testing.assert_array_equal(split.x_train[:, 0], [2, 3, 4, 5])
    assert len(split.y_train) == 4
    assert "2 of them taken as public" in split.source


def test_public_must_leave_training_examples():
    with pytest.raises(ValueError, match="num_public=6"):
        task().with_public(6)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros((4, 1), int), r"y_train.shape=\(4, 1\)"),
        (np.zeros(3, int), r"y_train.shape=\(3,\)"),
        (np.array([0, 1, 2, 3]), "num_classes=3"),
        (np.array([0, 1, 2, -1]), "num_classes=3"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message):
    x = np.zeros((4, 2), np.float32)
    with pytest.raises(ValueError, match=message):
        tasks.Task("numbers", x, labels, x, np.zeros(4, int), 3)


def test_import_loads_no_data_library():
    # Keras imports scikit-learn by itself where it is installed.
    code = (
        "import sys, keras; before = set(sys.modules); "
        "import tf_dpadaptive.data.tasks; new = set(sys.modules) - before; "
        "sys.exit(bool(new & {'sklearn', 'tensorflow_datasets'}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
