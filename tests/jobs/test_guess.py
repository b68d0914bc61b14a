"""A training whose loss is still that of a guess says so."""

from __future__ import annotations

import pytest

from accumtrain.jobs.dispatch import run

SMALL = ("model=lenet5", "data=digits", "batch_size=64", "accum.steps=2", "optim=sgd", "run.name=one")


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "epochs", "told"), [("1e-9", 1, True), ("0.05", 1, False), ("1e-9", 0.1, False)])
def test_a_model_that_has_learned_nothing(compose, tmp_path, capsys, rate, epochs, told):
    """An update that is not after an epoch says nothing yet."""
    run(compose(*SMALL, f"optim.lr={rate}", f"train.epochs={epochs}", f"run.dir={tmp_path}"))
    warned = capsys.readouterr().err
    assert ("is that of a guess (2.3026), the model has learned nothing: try another optim.lr" in warned) == told


@pytest.mark.slow
def test_statistics_that_lag_behind(compose, tmp_path, capsys):
    """Training learns; evaluation uses moving statistics that are almost the initial ones."""
    lagging = ("model.norm_momentum=0.9999", "model.units=[1,1,1]", "optim.lr=0.1", "train.epochs=2")
    run(compose("model=resnet20", *SMALL[1:], *lagging, f"run.dir={tmp_path}"))
    warned = " ".join(capsys.readouterr().err.split())
    assert "is no better than a guess (2.3026), that of training is: moving statistics of batch norm may lag" in warned
