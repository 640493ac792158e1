"""What each noise costs at the same ε."""

import json
import math
import runpy

import ml_collections
import numpy as np
import pytest

import tf_dpadaptive as dpa
from tf_dpadaptive.experiments import cli, noise_choice, sections


def config(compare=None, **privacy):
    made = ml_collections.ConfigDict()
    made.data = sections.data("digits", num_train=1000)
    fields = {
        "epsilon": 4.0,
        "delta": 1e-5,
        "expected_batch_size": 100,
        "sampling": "shuffled",
    }
    made.privacy = sections.privacy(**(fields | privacy))
    made.train = sections.train(epochs=4)
    if compare is not None:
        made.compare = compare
    return made


def plan(**changes):
    fields = {
        "noise_multiplier": 1.0,
        "expected_batch_size": 100,
        "num_examples": 1000,
        "num_steps": 40,
        "sampling": "shuffled",
        "delta": 1e-5,
    }
    return dpa.PrivacyPlan(**(fields | changes))


def test_every_mechanism_is_at_the_same_epsilon():
    wanted = ["Independent @ poisson", "BLT(2, epochs=epochs)", "BandedMF(8)"]
    choices = noise_choice.compare(plan(), 4.0, wanted)
    assert [c.sampling for c in choices] == ["poisson", "shuffled", "shuffled"]
    assert choices[1].noise == "BLT(buffers=2, epochs=4)"
    for choice, noise in zip(
        choices,
        [None, dpa.noise.BLT(2, epochs=4), dpa.noise.BandedMF(8)],
        strict=True,
    ):
        same = plan(
            noise_multiplier=choice.noise_multiplier,
            sampling=choice.sampling,
            noise=noise or dpa.noise.Independent(),
        )
        assert 3.96 <= same.epsilon() <= 4.0
        assert not choice.refused


def test_errors_are_those_of_the_summed_noise():
    noise = dpa.noise.BandedMF(8)
    for adjacency, factor in (("zero_out", 1), ("replace", 2)):
        (found,) = noise_choice.compare(
            plan(adjacency=adjacency), 4.0, ["BandedMF(8)"]
        )
        summed = np.cumsum(noise.noising_matrix(40), axis=0)
        scale = factor * found.noise_multiplier
        np.testing.assert_allclose(
            found.errors, scale * np.linalg.norm(summed, axis=1)
        )
        rows = noise.noising_matrix(40)
        np.testing.assert_allclose(
            found.one_step, scale * math.sqrt(np.sum(rows**2) / 40)
        )


def test_memory_is_that_of_the_stream():
    wanted = ["Independent", "BLT(3)", "BandedMF(8)", "BandedInverse(2)"]
    found = noise_choice.compare(plan(), 4.0, wanted)
    assert [c.bytes_per_parameter for c in found] == [0, 12, 28, 0]


def test_what_cannot_be_had_says_why():
    found = noise_choice.compare(
        plan(), 4.0, ["BandedMF(11)", "BLT(2) @ cyclic_poisson"]
    )
    assert "min_separation=10" in found[0].refused
    assert "bands" in found[1].refused


def test_report_and_picture(tmp_path):
    made = config(("BLT(2)", "BandedMF(11)"), noise="BandedMF(4)")
    result = noise_choice.run(made, tmp_path)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert stored["epsilon"] == result["epsilon"] <= 4.0
    assert stored["delta"] == 1e-5
    assert stored["updates"] == 40
    assert stored["config"]["privacy"]["noise"] == "BandedMF(4)"
    assert [(row["noise"], row["own"]) for row in stored["compared"]] == [
        ("BandedMF(bands=4)", True),  # the plan's own was not asked for
        ("BLT(buffers=2)", False),
        ("BandedMF(bands=11)", False),
    ]
    assert (
        stored["compared"][0]["noise_multiplier"]
        == (result["noise_multiplier"])
    )
    assert (tmp_path / "noise.png").stat().st_size > 10_000
    text = noise_choice.summary(result)
    same = plan(
        noise=dpa.noise.BandedMF(4),
        noise_multiplier=result["noise_multiplier"],
    )
    assert text.startswith(same.statement())
    assert "BandedMF(bands=11)" in text
    assert "refused" in text


def test_given_noise_multiplier(tmp_path):
    made = config(("Independent()",), epsilon=None, noise_multiplier=2.0)
    result = noise_choice.run(made, tmp_path)
    assert result["epsilon"] == plan(noise_multiplier=2.0).epsilon()
    (row,) = result["compared"]
    np.testing.assert_allclose(row["noise_multiplier"], 2.0, rtol=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_multiplier": 1.0}, "Give one of"),
        ({"epsilon": None}, "Give one of"),
        ({"epsilon": None, "noise_multiplier": 0.0}, "finite"),
        ({"noise": "Laplace"}, "`noise`"),
    ],
)
def test_refusals(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        noise_choice.run(config(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_number_of_examples_must_be_known(tmp_path):
    made = config()
    made.data = sections.data("mnist")
    with pytest.raises(ValueError, match="num_train"):
        noise_choice.run(made, tmp_path)


def test_the_config_of_the_project_and_that_of_a_training():
    for name in ("calibrate", "mnist"):
        made = runpy.run_path(str(cli.config_path(name)))["get_config"]()
        with made.unlocked():
            made.data.num_train = 6000
        assert noise_choice._plan(made).epsilon() > 0
