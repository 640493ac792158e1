"""Strategies optimised by these tests are kept for the session only."""

import pytest

from tf_dpadaptive.noise import strategies_cache


@pytest.fixture(autouse=True, scope="session")
def cache_of_the_session(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("strategies")
        patch.setenv(strategies_cache.VARIABLE, str(folder))
        yield folder
