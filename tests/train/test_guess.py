"""A training whose loss is still that of a guess says so."""

from types import SimpleNamespace

import numpy as np
import pytest

from accumtrain.dispatch import run
from accumtrain.tasks.objective import open_objective
from accumtrain.train.tell.summary import warn_if_no_better_than

SMALL = (
    "model=lenet5",
    "data=digits",
    "data.val_fraction=0",
    "batch_size=64",
    "accum.steps=2",
    "optim=sgd",
    "run.name=one",
)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "epochs", "told"), [("1e-9", 1, True), ("0.05", 1, False), ("1e-9", 0.1, False)])
def test_a_model_that_has_learned_nothing(compose, tmp_path, capsys, rate, epochs, told):
    """An update that is not after an epoch says nothing yet."""
    run(compose(*SMALL, f"optim.lr={rate}", f"train.epochs={epochs}", f"run.dir={tmp_path}"))
    warned = capsys.readouterr().err
    assert (
        "is no better than a guess (2.3026): train longer, or with the optim.lr that job=lr suggests" in warned
    ) == told


@pytest.mark.slow
def test_statistics_that_lag_behind(compose, tmp_path, capsys):
    """Training learns; evaluation uses moving statistics that are almost the initial ones. The remedy mends it."""

    def warned(momentum):
        small = ("model.units=[1,1,1]", "optim.lr=0.1", "train.epochs=2", momentum)
        run(compose("model=resnet20", *SMALL[1:-1], *small, f"run.dir={tmp_path}", f"run.name=m{len(momentum)}"))
        return " ".join(capsys.readouterr().err.split())

    told = warned("model.norm_momentum=0.9999")
    assert "is no better than a guess (2.3026), that of training is: the moving statistics of batch norm lag" in told
    assert "100% of them are still initial values; more updates help, or model.norm_momentum=0.9" in told
    assert "no better than a guess" not in warned("model.norm_momentum=0.9")


@pytest.mark.parametrize(
    ("momenta", "updates", "told"),
    [
        ([], 1, "by heart"),  # such as LeNet-5, which has no batch norm
        ([0.9], 100, "by heart"),
        ([0.9], 20, "12% of them are still initial values; more updates help, or model.norm_momentum=0.79"),
        ([0.9, 0.999], 100, "90% of them are still initial values; more updates help, or model.norm_momentum=0.9"),
    ],
)
def test_what_may_be_the_reason(capsys, momenta, updates, told):
    summary = {"step": updates, "train": {"loss": 0.5}, "test": {"loss": 2.5}, "best_on": "test", "memory": {}}
    norms = [SimpleNamespace(momentum=each) for each in momenta]
    warn_if_no_better_than({"train": 2.3026, "test": 2.3026}, summary, norms)
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_updates_and_the_loss_are_told(capsys):
    """Fifty updates are few, and nothing says that none of them helped."""
    summary = {"step": 50, "train": {"loss": 3.4781}, "val": {"loss": 3.5}, "best_on": "val"}
    warn_if_no_better_than({"train": 3.2914, "val": 3.2914}, summary, [])
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith(
        "warning: after 50 updates the loss, 3.4781, is no better than a guess (3.2914): train longer, or"
    )


@pytest.mark.parametrize("sampling", ["shuffled", "balanced"])
def test_the_weights_of_classes_count_in_a_guess(compose, sampling):
    """The training loss is weighted, that of an evaluation is not."""
    config = compose("data=digits", "data.val_fraction=0.2", f"data.sampling={sampling}", "loss.class_weights={3:101}")
    objective = open_objective(config)
    labels = objective.stored.train.known_labels
    share = np.mean(labels == 3) if sampling == "shuffled" else 1 / 10
    expected = {"train": np.log(10) * (1 + 100 * share), "val": np.log(10), "test": np.log(10)}
    assert objective.guess() == pytest.approx(expected)


@pytest.mark.slow
def test_large_weights_are_no_failure(compose, tmp_path, capsys):
    weights = ",".join(f"{digit}:100" for digit in range(10))
    learned = ("optim.lr=0.002", "optim.momentum=0.9", "train.epochs=4", f"loss.class_weights={{{weights}}}")
    summary = run(compose(*SMALL, *learned, f"run.dir={tmp_path}"))
    assert summary["train"]["loss"] > 2.3026, "of the weighted loss, though most digits are told apart"
    assert summary["train"]["accuracy"] > 0.8
    told = capsys.readouterr()
    assert "better than a guess" not in told.err
    assert ["3", "146", "100"] in [line.split() for line in told.out.splitlines()], "what each class got"
