"""A job takes the configuration of the run that it goes on with; its command changes what was not learned."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accumtrain.errors import CheckpointError
from accumtrain.runs.checkpoint_store import CheckpointStore
from accumtrain.runs.names import learned_values
from accumtrain.runs.run import Run
from tests.begun import leave_checkpoint, save_config
from tests.config.remedies import remedied
from tests.manifests import FACTS

TRAINED = ("run.name=x", "model=lenet5", "data.mean=[0.4]", "accum.steps=2", "ema.decay=0.9", "run.seed=7")


@pytest.fixture
def continued(command, fake_job):
    """A trained run; returns the configurations that job=train sees."""

    def train(config):
        with Run(config) as run:
            run.save_config(config)
            store, facts = CheckpointStore(run.checkpoints), FACTS | {"learned": learned_values(config)}
            step = 1 + sum(1 for _ in run.checkpoints.glob("step-*"))
            store.write(step, lambda prefix: Path(f"{prefix}.index").touch(), lambda prefix: None, facts)

    seen = fake_job(train)
    assert command(*TRAINED).code == 0
    seen.clear()
    return seen


@pytest.fixture
def trained(continued, fake_job):
    """A trained run; returns the configurations that job=evaluate sees."""
    return fake_job(lambda config: None, "evaluate")


def test_nothing_but_the_name_is_needed(trained, command):
    assert command("job=evaluate", "run.name=x").code == 0
    (config,) = trained
    assert (config.model.kind, config.data.mean, config.ema.decay) == ("lenet", [0.4], 0.9)
    assert (config.run.seed, config.accum.steps, config.job) == (7, 2, "evaluate")


@pytest.mark.parametrize("job", ["plan", "check", "lr", "memory", "bench", "verify"])
def test_a_trial_with_the_name_of_a_run_has_its_values(continued, fake_job, command, job):
    seen = fake_job(lambda config: None, job)
    assert command(f"job={job}", "run.name=x", "batch_size=32", "optim=sgd", "data.std=[0.5]").code == 0
    (config,) = seen
    assert (config.model.kind, config.data.mean, config.accum.steps) == ("lenet", [0.4], 2)
    assert (config.batch_size, config.optim.kind, config.job) == (32, "sgd", job)


def test_a_trial_without_the_name_of_a_run_has_the_values_of_its_command(continued, fake_job, command):
    seen = fake_job(lambda config: None, "plan")
    assert command("job=plan", "run.name=y").code == 0
    assert command("job=plan").code == 0
    assert [config.model.kind for config in seen] == ["revnet", "revnet"]


def test_a_name_like_that_of_a_run_is_a_question(trained, command):
    answer = command("job=evaluate", "run.name=xx")
    assert answer.code == CheckpointError.exit_code
    assert "runs/xx/checkpoints: did you mean run.name=x? Or train first, with the same run.name" in answer.err


def test_what_was_not_learned_may_be_given(trained, command):
    given = ("device=cpu", "accum.steps=8", "model.memory=recompute", "run.hang_timeout=5", "log.every=3")
    assert command("job=evaluate", "run.name=x", *given).code == 0
    (config,) = trained
    assert (config.device.kind, config.accum.steps, config.model.memory) == ("cpu", 8, "recompute")
    assert (config.run.hang_timeout, config.log.every) == (5, 3)
    assert (config.model.kind, config.data.mean) == ("lenet", [0.4])


def test_training_goes_on_by_name_alone(continued, command):
    assert command("run.name=x").code == 0
    assert command("run.name=x", "train.epochs=30", "device=cpu", "run.walltime=5", "log.every=3").code == 0
    same, longer = continued
    assert (same.model.kind, same.data.mean, same.ema.decay, same.run.seed) == ("lenet", [0.4], 0.9, 7)
    assert longer.train.epochs == 30
    assert replace(longer, train=same.train, device=same.device, run=same.run, log=same.log) == same
    assert (longer.device.kind, longer.run.seed, longer.run.walltime, longer.log.every) == ("cpu", 7, 5, 3)


def test_epochs_that_are_given_replace_the_steps_of_the_run(command, continued):
    assert command("run.name=x", "train.steps=9").code == 0
    assert command("run.name=x", "train.epochs=2").code == 0
    assert [(config.train.epochs, config.train.steps) for config in continued][1:] == [(2, None)]


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("data.mean=[0.5]", "data.mean=[0.4] there and [0.5] here"),
        ("model=revnet38", "model.kind=lenet there and revnet here"),
        ("run.seed=1", "run.seed=7 there and 1 here"),
    ],
)
def test_training_does_not_change_what_is_learned(continued, refused, command, override, change):
    message = refused("run.name=x", override)
    assert change in message
    assert "give the values there" in message


def test_a_run_is_not_continued_with_another_task(continued, refused):
    """The loss of the run, which the command does not give, is not what it is refused for."""
    assert "task.kind=classify there and multilabel here" in refused(
        "run.name=x", "task=multilabel", "data=npz", "data.path=a.npz"
    )


def test_training_takes_what_it_is_forced_to(continued, command):
    assert command("run.name=x", "run.seed=1", "run.resume=force").code == 0
    assert command("run.name=x").code == 0
    assert [(config.run.seed, config.run.resume) for config in continued] == [(1, "force"), (1, True)]


def test_a_command_without_a_name_is_the_whole_configuration(continued, command):
    for words in (("model=lenet5",), ("model=lenet5", "train.epochs=2")):
        assert command(*words).code == 0
    assert [config.run.seed for config in continued] == [0, 0]


def test_a_profile_is_of_the_command_alone(command, fake_job):
    def train(config):
        save_config(config)
        leave_checkpoint(config)

    fake_job(train)
    assert command(*TRAINED, "debug.profile=3").code == 0
    seen = fake_job(lambda config: None, "evaluate")
    assert command("job=evaluate", "run.name=x").code == 0
    assert seen[0].debug.profile is None


def test_the_command_that_trained_evaluates_too(trained, command):
    assert command("job=evaluate", *TRAINED).code == 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.mean=[0.5]", "data.mean=[0.5]: the run in runs/x was trained with data.mean=[0.4]; leave data.mean out"),
        ("model=revnet38", "model.kind=revnet: the run in runs/x was trained with model.kind=lenet; leave model out"),
        ("run.seed=1", "run.seed=1: the run in runs/x was trained with run.seed=7; leave run.seed out"),
        ("model.weights=other", "model.weights=other: the run in runs/x was trained with model.weights=null; leave"),
        ("precision=bfloat16", "precision=bfloat16: the run in runs/x was trained with precision=float32"),
        ("++optim.clip_norm=3", "optim.clip_norm=3: the run in runs/x was trained with optim.clip_norm="),
        ("experiment=cifar10_revnet38", "the run in runs/x was trained with batch_size=64; leave experiment out"),
        ("recipe=strong", "leave recipe out to use the values of the run"),
        ("~run.seed", "~run.seed: removes a key that decides what is learned; leave it out"),
        ("model=3", "model=3: no such choice"),
        ("run=3", "run=3: run is a group of keys"),
        ("data=3", "data=3: no such choice"),
    ],
)
def test_what_was_learned_can_not_be_changed(override, message, trained, refused):
    told = refused("job=evaluate", "run.name=x", override)
    assert message in told
    assert "Traceback" not in told
    assert trained == []


def test_a_group_of_the_users_own_gives_nothing_that_was_learned(trained, command, own_file):
    own_file("site/here.yaml", "# @package _global_\nlog: {every: 7}\n")
    answer = command("--config-dir", "own", "job=evaluate", "run.name=x", "+site=here")
    assert answer.code == 0, answer.err


def test_a_damaged_configuration_of_the_run(trained, command, tmp_path):
    (tmp_path / "runs" / "x" / "config.yaml").write_text("model: [")
    answer = command("job=evaluate", "run.name=x")
    assert answer.code == 5
    assert answer.err.startswith("error: runs/x/config.yaml is damaged")


def test_a_run_of_a_program_of_its_own(trained, refused, tmp_path):
    file = tmp_path / "runs" / "x" / "config.yaml"
    file.write_text(file.read_text().replace("kind: lenet", "kind: mynet"))
    message = refused("job=evaluate", "run.name=x")
    assert "model.kind=mynet, which exists only in the program that trained the run" in message
    assert trained == []


def test_a_sweep_over_runs(trained, command):
    assert command("-m", "job=evaluate", "run.name=x", "accum.steps=4").code == 0
    assert trained[0].data.mean == [0.4]
    assert sys.modules["accumtrain.train.trained.evaluate"]


@pytest.mark.parametrize(
    ("words", "remedies"),
    [
        (("job=evaluate", "run.name=x", "data.mean=[0.5]"), 1),
        (("job=evaluate", "run.name=x", "model=revnet38"), 1),
        (("job=evaluate", "run.name=x", "recipe=strong"), 1),
        (("job=evaluate", "run.name=x", "++optim.clip_norm=3"), 1),
        ((*TRAINED, "run.resume=false"), 2),
        ((*TRAINED, "batch_size=128"), 2),
        ((*TRAINED, "data.std=[0.2]"), 2),
        ((*TRAINED, "run.dir=a_file"), 1),
    ],
)
def test_remedies_of_a_run_work(trained, command, tmp_path, words, remedies):
    """Remedies about a run that is there are followed to the letter. Values that it began with are prose."""
    (tmp_path / "a_file").touch()

    def run(*words):
        answer = command(*words)
        return answer.code, answer.err.removeprefix("error: ").strip()

    code, message = run(*words)
    assert code == 2
    followed = remedied(words, message)
    assert len(followed) == remedies, (message, followed)
    for each in followed:
        assert run(*each)[0] == 0, (message, each)


def test_what_is_to_be_trained_first(trained, command):
    answer = command("job=evaluate", "run.name=other")
    assert answer.code == 5
    assert "train first, with the same run.name" in answer.err
    assert command(*TRAINED, "run.name=other").code == 0
