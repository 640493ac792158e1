"""Tests of the sections of configs: what can be set, and what can't."""

import inspect

import pytest

import tf_dpadaptive as dpa
from tf_dpadaptive.experiments import models, sections

OPTIMIZERS = sorted(set(dpa.optimizers.__all__) - {"DPOptimizer", "recommend"})


def optimizer(name, **values):
    return sections.optimizer(
        name, learning_rate=0.1, l2_norm_clip=1.0, **values
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_section_has_every_argument(name):
    section = optimizer(name)
    assert section.learning_rate == 0.1
    assert section.l2_norm_clip == 1.0
    wanted = inspect.signature(getattr(dpa.optimizers, name)).parameters
    without = {"plan", "args", "kwargs", "optimizer", "public_batches"}
    assert set(wanted) - without <= set(section)
    for key in ("plan", "seed", "ledger", "name_", "clipnorm"):
        assert key not in section


def test_defaults_are_those_of_the_constructor():
    section = optimizer("DPAdam")
    assert section.beta_2 == 0.999
    assert section.epsilon == 1e-7
    assert section.use_ema is False
    # Base classes that **kwargs go to are read as well.
    assert optimizer("DPAdamW").beta_2 == 0.999
    assert optimizer("DPAdamW").weight_decay == 0.004


def test_optional_fields_are_placeholders_of_their_type():
    section = optimizer("DPAdam")
    assert section.weight_decay is None
    with pytest.raises(TypeError):
        section.weight_decay = "much"
    section.weight_decay = 0.1
    assert section.weight_decay == 0.1


def test_argument_without_default_is_a_placeholder():
    assert optimizer("AdaCliP").h2 is None


def test_typo_is_refused():
    with pytest.raises((AttributeError, KeyError), match="beta_3"):
        optimizer("DPAdam", beta_3=0.9)
    section = optimizer("DPAdam")
    with pytest.raises(AttributeError, match="beta_3"):
        section.beta_3 = 0.9


def test_integer_refuses_a_float():
    section = sections.train(epochs=3)
    with pytest.raises(TypeError):
        section.epochs = 1.5


def test_unknown_optimizer_names_the_known():
    with pytest.raises(ValueError, match=r"DPAdam.*Received: 'Adam'"):
        optimizer("Adam")


def test_post_processing_takes_any_keras_optimizer():
    section = optimizer("DPPostProcessing:Lion")
    assert section.name == "DPPostProcessing"
    assert section.inner == "Lion"
    assert section.beta_2 == 0.99
    assert optimizer("DPPostProcessing").inner == "Adam"
    with pytest.raises(ValueError, match="Lionel"):
        optimizer("DPPostProcessing:Lionel")


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_model_section_has_every_argument(name):
    section = sections.model(name)
    wanted = set(inspect.signature(models.MODELS[name]).parameters) - {"task"}
    assert set(section) == wanted | {"name"}


def test_given_leaves_out_what_has_no_value():
    section = sections.data("mnist", num_train=3)
    assert sections.given(section) == {"name": "mnist", "num_train": 3}
    assert sections.given(section, "name") == {"num_train": 3}
