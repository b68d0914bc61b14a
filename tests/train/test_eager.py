"""debug.eager: micro-steps run as plain Python, and the run learns the same to rounding."""

import pytest
import tensorflow as tf

from accumtrain.dispatch import run
from accumtrain.engine.step import Step
from accumtrain.optim.config import SgdConfig
from tests.engine.small import examples, lenet, window_for
from tests.train.conftest import records_of

SMALL = ("data=synthetic", "data.image_size=8", "data.train_examples=24", "data.test_examples=8", "batch_size=8",
         "accum.steps=2", "train.steps=3", "log.every=1", "optim=sgd", "optim.lr=0.01")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        ("model=lenet5",),
        pytest.param(("model=revnet38", "model.units=[1,1]", "model.filters=[8,8,16]"), marks=pytest.mark.slow),
    ],
)
def test_the_run_is_the_same_to_rounding(compose, tmp_path, model):
    losses = {}
    for eager in ("true", "false"):
        run(compose(*SMALL, *model, f"debug.eager={eager}", f"run.dir={tmp_path}", f"run.name=eager-{eager}"))
        losses[eager] = [record["loss"] for record in records_of(tmp_path / f"eager-{eager}")]
    assert losses["true"] == pytest.approx(losses["false"], rel=1e-3)


def test_layers_run_as_python(monkeypatch):
    window = window_for(lenet(), SgdConfig(lr=0.1), (8, 8, 1))
    step, seen = Step(window, eager=True), []
    layer = type(window.model.segments[0].layers[0])
    forward = layer.__call__
    monkeypatch.setattr(layer, "__call__", lambda *of: seen.append(tf.executing_eagerly()) or forward(*of))
    batches = iter(tf.data.Dataset.from_tensors(examples(4, (8, 8, 1))).repeat())
    step.accumulate(batches, 1)
    assert set(seen) == {True}
    assert bool(step.commit()["finite"])
    with pytest.raises(ValueError, match="eager"):
        step.updates(batches, 2)
