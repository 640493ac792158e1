"""Strategies on disk: found again, checked, and never in the way."""

import multiprocessing
import os

import numpy as np
import pytest

from tf_dpadaptive.noise import strategies_banded, strategies_cache

RIGHT = {"c": np.array([1.0, 0.5])}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(strategies_cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class Computed:
    """Counts how often a strategy was computed."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return dict(RIGHT)


def loss(arrays):
    return float(np.sum(strategies_cache.shaped(arrays, "c", 2)))


def ask(computed, **parameters):
    return strategies_cache.cached(
        "name", parameters or {"n": 2}, computed, loss
    )


def test_a_strategy_is_computed_once_for_its_parameters(folder):
    computed = Computed()
    for _ in range(3):
        np.testing.assert_array_equal(ask(computed)["c"], RIGHT["c"])
    assert computed.times == 1
    ask(computed, n=3)
    assert computed.times == 2
    assert len(list(folder.glob("name-*.npz"))) == 2


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half a file", b"text"])
def test_a_corrupt_file_is_computed_again_and_replaced(folder, damage):
    computed = Computed()
    ask(computed)
    (path,) = folder.iterdir()
    path.write_bytes(damage)
    np.testing.assert_array_equal(ask(computed)["c"], RIGHT["c"])
    assert computed.times == 2
    ask(computed)
    assert computed.times == 2


def test_a_truncated_file_is_computed_again(folder):
    computed = Computed()
    ask(computed)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    ask(computed)
    assert computed.times == 2


@pytest.mark.parametrize(
    "arrays",
    [
        {"c": np.array([1.0, 0.6])},  # another loss than stated
        {"c": np.array([1.0, 0.5, 0.0])},  # another shape
        {"c": np.array([1.0, np.nan])},
        {},
    ],
)
def test_a_file_that_fails_its_check_is_computed_again(folder, arrays):
    computed = Computed()
    ask(computed)
    (path,) = folder.iterdir()
    with np.load(path) as file:
        identity = file["identity"]
    np.savez(path, identity=identity, loss=np.asarray(1.5), **arrays)
    np.testing.assert_array_equal(ask(computed)["c"], RIGHT["c"])
    assert computed.times == 2


def test_a_file_of_other_parameters_is_not_used(folder):
    computed = Computed()
    ask(computed, n=2)
    (path,) = folder.iterdir()
    ask(computed, n=3)
    (other,) = set(folder.iterdir()) - {path}
    path.replace(other)
    ask(computed, n=3)
    assert computed.times == 3


def test_pickles_are_never_loaded(folder):
    computed = Computed()
    ask(computed)
    (path,) = folder.iterdir()
    np.savez(path, identity=np.array([object()], dtype=object))
    ask(computed)
    assert computed.times == 2


def test_a_folder_that_cannot_be_written_costs_time_only(folder):
    folder.write_text("a file in the way")
    computed = Computed()
    for _ in range(2):
        np.testing.assert_array_equal(ask(computed)["c"], RIGHT["c"])
    assert computed.times == 2


def test_the_folder_is_that_of_the_environment_or_of_the_user(monkeypatch):
    monkeypatch.setenv(strategies_cache.VARIABLE, "/a/b")
    assert strategies_cache.folder().as_posix() == "/a/b"
    monkeypatch.delenv(strategies_cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert strategies_cache.folder().as_posix() == "/c/tf_dpadaptive/strategies"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/d")
    assert strategies_cache.folder().as_posix().startswith("/d/.cache/")


def write_often(folder):
    os.environ[strategies_cache.VARIABLE] = str(folder)
    for _ in range(30):
        computed = Computed()
        ask(computed)
        for path in strategies_cache.folder().glob("name-*.npz"):
            path.unlink(missing_ok=True)


def test_concurrent_writers_leave_no_torn_file(folder):
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=write_often, args=(folder,)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert not list(folder.glob("*.part"))
    computed = Computed()
    ask(computed)
    np.testing.assert_array_equal(ask(computed)["c"], RIGHT["c"])


def test_strategies_go_through_the_cache(folder):
    first = strategies_banded.banded.__wrapped__(12, 3)
    assert [path.name[:16] for path in folder.iterdir()] == ["banded_toeplitz-"]
    np.testing.assert_array_equal(
        strategies_banded.banded.__wrapped__(12, 3), first
    )
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 2.0
