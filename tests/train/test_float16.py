"""precision=float16 in the training job: overflows are counted, and a continued run repeats them."""

import pytest

from accumtrain.dispatch import run
from accumtrain.errors import ConfigError, DivergedError
from tests.train.conftest import json_of, records_of


@pytest.fixture
def config(compose, tmp_path):
    def of(name, *overrides):
        return compose(
            "data=synthetic", "data.image_size=8", "data.train_examples=48", "data.test_examples=16", "model=lenet5",
            "optim=adam", "batch_size=16", "accum.steps=2", "train.steps=6", "eval.every=100", "log.every=1",
            "schedule=constant", "precision=float16", f"run.dir={tmp_path}", f"run.name={name}", *overrides,
        )  # fmt: skip

    return of


@pytest.mark.slow
def test_overflows_are_skipped_counted_and_repeated_by_a_continued_run(config, tmp_path, capsys):
    high = "loss_scale.initial=1099511627776"  # 2^40 overflows until it has been halved often enough
    run(config("whole", high))
    said = capsys.readouterr().out
    assert "batches were skipped" in said
    assert "float16 overflowed, this batch is skipped (number 1); loss scale 1.09951e+12 -> 5.49756e+11" in said
    trained = records_of(tmp_path / "whole", "train")
    assert [record["step"] for record in trained] == [1, 2, 3, 4, 5, 6]
    skipped = trained[-1]["skipped"]
    assert skipped >= 10
    assert json_of(tmp_path / "whole")["skipped_windows"] == skipped
    assert trained[-1]["loss_scale"] == 2.0 ** (40 - skipped)
    run(config("parts", high, "train.steps=3", "checkpoint.every=1"))
    run(config("parts", high))
    assert records_of(tmp_path / "parts", "train") == trained


def test_what_no_scale_can_mend_is_divergence(config):
    with pytest.raises(DivergedError, match="update 1 is not finite"):
        run(config("wild", "data.std=[1e-9]", "loss_scale.initial=4"))


def test_verify_says_which_precisions_it_takes(config):
    with pytest.raises(ConfigError, match=r"precision=float16: .* verify with precision=float32 or bfloat16"):
        run(config("verified", "job=verify"))
