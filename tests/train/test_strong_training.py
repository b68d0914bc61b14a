"""Training with everything that changes images, labels and depth: stopped, continued and split, it learns the same."""

from functools import partial

import numpy as np
import pytest

from accumtrain.dispatch import run
from accumtrain.errors import Preempted
from tests.train.conftest import records_of
from tests.train.test_train import assert_same, stop_after

STRONG = (
    *("data.augment=shift", "data.jitter=0.3", "data.randaugment=1", "data.erasing=0.5", "data.mixup=0.4"),
    *("data.cutmix=1", "data.sampling=balanced", "loss.label_smoothing=0.1", "loss.class_weights={3:2}"),
    *("model.drop_path=0.5", "ema.decay=0.9", "schedule=one_cycle"),
)


@pytest.fixture
def config(compose, tmp_path):
    """48 examples in 6 updates of 16, so that every third update begins an epoch."""
    return partial(
        compose,
        *("model=resnet20", "model.units=[1,1]", "model.filters=[8,8,16]", "model.norm=group", "optim=adam"),
        *("data=synthetic", "data.image_size=8", "data.train_examples=48", "data.test_examples=20", "batch_size=16"),
        *("train.steps=6", "eval.every=3", "log.every=1", f"run.dir={tmp_path}", *STRONG),
    )


@pytest.mark.slow
def test_stopping_in_mid_epoch_changes_no_bit(config, tmp_path, monkeypatch):
    run(config("run.name=whole", "accum.steps=2"))
    with monkeypatch.context() as patch:
        stop_after(patch, "train", 4)
        with pytest.raises(Preempted):
            run(config("run.name=stopped", "accum.steps=2"))
    run(config("run.name=stopped", "accum.steps=2"))
    assert_same(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.slow
def test_the_split_of_a_batch_changes_nothing(config, tmp_path):
    for steps in (1, 4):
        run(config(f"run.name=split{steps}", f"accum.steps={steps}", "precision=float64"))
    one, four = (records_of(tmp_path / f"split{steps}") for steps in (1, 4))
    for values in ("loss", "accuracy"):
        np.testing.assert_allclose([each[values] for each in one], [each[values] for each in four], rtol=1e-9)
