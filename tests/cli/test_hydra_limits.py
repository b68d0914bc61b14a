"""Hydra itself writes nothing, imports nothing and calls nothing that a command or a folder of YAML files names."""

import sys

import pytest

REFUSED = [
    "hydra.run.dir=own",
    "hydra.sweep.dir=own",
    "hydra.sweep.subdir=own",
    "hydra.output_subdir=own",
    "hydra.verbose=true",
    "hydra.searchpath=[pkg://own_module]",
    "hydra.job.chdir=true",
    "hydra.job.env_set={OWN:1}",
    "hydra.job_logging.root={level:INFO}",
    "hydra/job_logging=default",
    "hydra/hydra_logging=default",
    "hydra/output=default",
    "+hydra.callbacks={own:{_target_:own_module.Own}}",
    "++hydra.callbacks.own._target_=own_module.Own",
    "~hydra.run",
    "experiment@hydra.job_logging=cifar10_revnet38",
    "hydra/launcher@hydra.callbacks.own=basic",
    "+hydra={run:{dir:own}}",
]
CODE = [
    ("+hydra.launcher.own={_target_:own_module.Own}", "hydra.launcher.own._target_=own_module.Own"),
    ("+hydra.launcher.own='${oc.create:${run.name}}'", "must not be made by oc.create or oc.decode"),
    ("hydra.launcher._target_=own_module.Own", "hydra.launcher._target_=own_module.Own"),
    ("+hydra.sweeper.own=[{_target_:own_module.Own}]", "hydra.sweeper.own[0]._target_=own_module.Own"),
    ("optim=keras optim.name=Adam optim.args={_target_:own_module.Own}", "optim.args._target_=own_module.Own"),
]
FILES = {
    "callbacks": "# @package _global_\nhydra: {callbacks: {own: {_target_: own_module.Own}}}\n",
    "folder": "# @package _global_\nhydra: {run: {dir: own}}\n",
    "logs": "# @package _global_\nhydra: {job_logging: {root: {handlers: [file]}}}\n",
    "environment": "# @package _global_\nhydra: {job: {env_set: {OWN: '1'}}}\n",
    "code": "# @package optim\nargs: {_target_: own_module.Own}\n",
}


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    """A module whose import leaves a file."""
    modules = tmp_path.parent / f"{tmp_path.name}-modules"
    modules.mkdir()
    (modules / "own_module.py").write_text("open('imported', 'w')\nclass Own: pass\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(modules)])


@pytest.mark.parametrize("mode", ["", "-m "])
@pytest.mark.parametrize("override", REFUSED)
def test_a_closed_key_of_hydra(override, mode, refused, seen, tmp_path):
    assert refused(*f"{mode}batch_size=32 {override}".split(" ")) == (
        f"error: {override}: this part of Hydra can't be set; leave it out: "
        "only hydra/launcher, hydra/sweeper and their keys can be chosen, and files are written in run.dir\n"
    )
    assert seen == list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["", "-m "])
@pytest.mark.parametrize(("overrides", "message"), CODE)
def test_a_value_that_names_code(overrides, message, mode, refused, seen, tmp_path):
    assert message in refused(*f"{mode}{overrides}".split(" "))
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("mode", ["", "-m "])
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_changes_hydra_or_names_code(file, mode, refused, seen, own_file, tmp_path):
    own_file("experiment/mine.yaml", FILES[file])
    message = refused(*f"{mode}--config-dir own experiment=mine".split(" "))
    assert "hydra." in message or "can't name code" in message
    assert seen == []
    assert [each.name for each in tmp_path.iterdir()] == ["own"]


def test_a_whole_configuration_of_ones_own(command, refused, seen, own_file, tmp_path):
    own_file("mine.yaml", "defaults: [config, _self_]\nbatch_size: 32\n")
    assert command("--config-dir", "own", "--config-name", "mine").code == 0
    assert command("-m", "--config-dir", "own", "--config-name", "mine", "accum.steps=2,4").code == 0
    assert [(config.batch_size, config.accum.steps) for config in seen] == [(32, 1), (32, 2), (32, 4)]
    own_file("mine.yaml", "hydra: {searchpath: ['pkg://own_module']}\n")
    assert refused("--config-dir", "own", "--config-name", "mine").startswith("error: hydra.searchpath in mine")
    assert not (tmp_path / "imported").exists()


def test_what_is_open(command, seen):
    assert command("hydra.mode=MULTIRUN", "hydra/launcher=basic", "batch_size=32,64").code == 0
    assert len(seen) == 2


ENDLESS = {
    "aliases of aliases": "".join(
        ["l0: &l0 [x, x]\n", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 10))]
    ),
    "alias of itself": "model: &model {kind: *model}\n",
    "100,000 brackets": "[" * 100_000,
    "100,000 braces": "{a: " * 100_000,
}


@pytest.mark.parametrize("content", ENDLESS.values(), ids=ENDLESS)
def test_a_file_that_takes_for_ever_to_read(content, command, refused, seen, own_file):
    file = own_file("experiment/mine.yaml", content)
    message = refused("--config-dir", "own", "experiment=mine")
    assert "own/experiment/mine.yaml can't be read: " in message
    assert "fix that file or move it away" in message
    assert seen == []
    file.unlink()
    assert command("--config-dir", "own").code == 0


def test_aliases_of_a_few_values_are_read(command, seen, own_file):
    own_file("experiment/mine.yaml", "# @package _global_\nbatch_size: &size 32\naccum: {steps: *size}\n")
    assert command("--config-dir", "own", "experiment=mine").code == 0
    assert (seen[0].batch_size, seen[0].accum.steps) == (32, 32)
