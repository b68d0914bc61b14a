"""Values of a file that the command contradicts are refused, and the remedy in the message helps."""

import pytest


@pytest.fixture
def config_of(command, seen):
    """Run a command, and return the configuration that its job sees."""

    def run(*arguments):
        assert command(*arguments).code == 0
        return seen[-1]

    return run


@pytest.mark.parametrize(
    ("overrides", "epochs", "steps"),
    [
        (["train.epochs=2", "train.steps=null"], 2.0, None),
        (["train.epochs=2", "train.steps=5"], 2.0, 5),
        (["train.epochs=null"], None, 80_000),
        (["train.steps=5"], 25.0, 5),
        (["experiment=mnist_lenet5", "train.epochs=2"], 2.0, None),  # a file that gives epochs
    ],
)
def test_the_length_that_the_command_writes_is_the_run_s(config_of, overrides, epochs, steps):
    experiment = [] if overrides[0].startswith("experiment=") else ["experiment=cifar10_resnet32"]
    train = config_of(*experiment, *overrides).train
    assert (train.epochs, train.steps) == (epochs, steps)


def test_keys_of_another_kind_can_be_taken_out(config_of):
    without = ("~optim.momentum", "~schedule.boundaries", "~schedule.factor")
    config = config_of("experiment=imagenet_resnet50", "optim=adam", "schedule=cosine", *without)
    assert (config.optim.kind, config.schedule.kind, config.optim.weight_decay) == ("adam", "cosine", 1e-4)


def test_a_file_of_one_s_own_is_not_named(command, refused, seen, own_file):
    own_file("optim/mine.yaml", "kind: adam\nmomentum: 0.9\n")
    assert "a file of the command gives it: add ~optim.momentum" in refused("--config-dir", "own", "optim=mine")
    assert seen == []
    assert command("--config-dir", "own", "optim=mine", "~optim.momentum").code == 0
