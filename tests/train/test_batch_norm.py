"""Micro-batches that are too small for batch norm are refused or told of, and every remedy works when followed."""

import re

import pytest

from accumtrain.data.open_data import open_data
from accumtrain.dispatch import run
from accumtrain.errors import ConfigError
from accumtrain.train.build import check_micro_batch, model_for
from accumtrain.train.tell.remedies import describe_out_of_memory

RESNET = ("model=resnet20", "model.units=[1]", "model.filters=[16,16]")
REVNET = ("model=revnet38", "model.units=[1]", "model.filters=[16,16]")
OVERRIDE, STEPS = re.compile(r"[a-z_.]+=[a-z0-9]+"), re.compile(r"accum\.steps=(\d+) ")


@pytest.fixture
def said(compose, capsys):
    """Return the words of `check_micro_batch` on a model: the error, the warning, or nothing."""

    def of(*overrides, replicas=1):
        config = compose(*overrides)
        model = model_for(config, open_data(config.data, 0))
        capsys.readouterr()
        try:
            check_micro_batch(config, model, replicas)
        except ConfigError as error:
            return "refused", str(error)
        warned = " ".join(capsys.readouterr().err.split())
        return ("warned", warned) if warned else ("", "")

    return of


@pytest.mark.parametrize(
    ("overrides", "replicas", "verdict"),
    [
        ((*RESNET, "batch_size=8", "accum.steps=8"), 1, "refused"),
        ((*RESNET, "batch_size=1", "accum.steps=1"), 1, "refused"),
        ((*RESNET, "batch_size=8", "accum.steps=4"), 2, "refused"),
        ((*RESNET, "batch_size=6", "accum.steps=2"), 1, "warned"),
        ((*RESNET, "batch_size=8", "accum.steps=2"), 1, ""),
        ((*RESNET, "batch_size=8", "accum.steps=8", "model.norm=group"), 1, ""),
        ((*RESNET, "batch_size=8", "accum.steps=8", "model.freeze=[*norm*]"), 1, ""),
        ((*REVNET, "batch_size=14", "accum.steps=7"), 1, "warned"),
        ((*REVNET, "batch_size=8", "accum.steps=8", "model.memory=store"), 1, "refused"),
        (("model=lenet5", "batch_size=8", "accum.steps=8"), 1, ""),
    ],
)
def test_who_is_told_and_that_the_remedies_work(said, overrides, replicas, verdict):
    found, message = said(*overrides, replicas=replicas)
    assert found == verdict
    for remedy in remedies(message):
        assert said(*overrides, *remedy, replicas=replicas) == ("", ""), remedy


def remedies(message):
    """The overrides of each remedy of a message."""
    found = [OVERRIDE.findall(each) for each in message.partition(": give")[2].split("; or ")] if message else []
    assert not message or all(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "verdict"), [("MobileNetV2", "refused"), ("ConvNeXtTiny", "")])
def test_models_of_keras_are_asked_whether_they_have_batch_norm(said, layers, verdict):
    keras = ("model=keras", f"model.name={layers}", "data=synthetic", "data.image_size=32")
    found, message = said(*keras, "batch_size=8", "accum.steps=8")
    assert found == verdict
    assert "model.norm" not in message


def test_a_run_is_refused_before_it_trains(compose, tmp_path):
    config = compose(*RESNET, "batch_size=8", "accum.steps=8", f"run.dir={tmp_path}", "run.name=one", "train.steps=1")
    with pytest.raises(ConfigError, match="statistics of a single example"):
        run(config)
    assert not (tmp_path / "one/checkpoints").exists()


@pytest.mark.slow
def test_the_remedies_train_to_the_accuracy_of_training(compose, tmp_path):
    """Of a single example, test accuracy was 0.09 where that of training was 1.0."""
    common = (*RESNET, "batch_size=32", "optim=sgd", "optim.momentum=0.9", "train.steps=300", f"run.dir={tmp_path}")
    for place, remedy in enumerate((["accum.steps=8"], ["accum.steps=32", "model.norm=group"])):
        done = run(compose(*common, *remedy, f"run.name=r{place}"))
        assert done["test"]["accuracy"] > 0.8


def test_advice_does_not_lead_there(compose):
    """Remedies for too little memory stop at micro-batches of 2."""
    for model, last in ((RESNET, 4), ((*RESNET, "model.norm=group"), 8)):
        steps = 1
        while told := STEPS.search(describe_out_of_memory(compose(*model, "batch_size=8", f"accum.steps={steps}"), 1)):
            assert int(told[1]) > steps
            steps = int(told[1])
        assert steps == last
