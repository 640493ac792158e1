"""TF-Privacy is imported where it is used, and missed in plain words."""

import subprocess
import sys

import pytest

from tests.noise.queries import needs_tf_privacy
from tf_dpadaptive.noise import tf_privacy


def test_tf_privacy_is_imported_where_it_is_used():
    code = (
        "import sys, tf_dpadaptive as dpa\n"
        "assert 'tensorflow_privacy' not in sys.modules\n"
        "dpa.noise.FromDPQuery({'name': 'GaussianSumQuery'})\n"
        "assert 'tensorflow_privacy' not in sys.modules\n"
        "assert not hasattr(sys, 'skip_tf_privacy_import')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_python_without_it_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_privacy", None)
    with pytest.raises(ImportError, match=r"Python 3\.11"):
        tf_privacy.library("no_such_module")


@needs_tf_privacy
def test_a_flag_that_somebody_set_stays(monkeypatch):
    monkeypatch.setattr(sys, "skip_tf_privacy_import", 5, raising=False)
    tf_privacy.library("dp_query")
    assert sys.skip_tf_privacy_import == 5
