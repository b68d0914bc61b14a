"""`accumtrain --help <group, choice or key>`."""

import pytest

from accumtrain.cli.choices import all_choices
from accumtrain.config.keys import list_all_keys, list_config_classes, list_keys
from accumtrain.config.read import to_mapping
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.roles import keys_with
from accumtrain.config.schema import Config
from accumtrain.fields import Role

GROUPS = sorted({*all_choices([]), *list_config_classes()})


def test_a_group(command):
    answer = command("--help", "optim")
    assert answer.code == 0
    assert answer.out.startswith("optim: The optimizer.\n\nChoices, optim=<choice>\n")
    for shown in (
        "\n  adamw                   AdamW (Loshchilov & Hutter 2019)",
        "\nKeys of every optimizer.\n  optim.lr=0.001\n      a number or null; above 0.\n      Learning rate",
        "\nKeys of optim.kind=sgd\n  optim.lr=0.1\n",
    ):
        assert shown in answer.out


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_fits_and_has_its_keys_and_choices(group, command):
    answer = command("--help", group)
    assert answer.code == 0
    assert all(len(line) <= 80 for line in answer.out.splitlines() if " " in line.strip())
    for key in list_all_keys():
        assert key.name.partition(".")[0] != group or f"  {key.name}=" in answer.out or key.name == group == "job"
    for choice in all_choices([]).get(group, []):
        assert f"\n  {choice}" in answer.out


@pytest.mark.parametrize(
    ("group", "choice"), [(group, each) for group, found in all_choices([]).items() for each in found]
)
def test_every_choice(group, choice, command):
    answer = command("--help", f"{group}={choice}")
    assert answer.code == 0
    assert answer.out.startswith(f"{group}={choice}: ")
    kinds = [entry.config for entry in REGISTRIES.get(group, ()) if entry.name == choice]
    has_keys = group in list_config_classes() and all(list_keys(kind, group) for kind in kinds)
    assert has_keys == ("\n\nKeys\n" in answer.out)


def test_a_choice_has_its_own_values(command):
    assert "\n  model.units=[5,5,5]\n" in command("--help", "model=resnet32").out
    assert "data.path=<value>, required, such as photos\n" in command("--help", "data=folder").out


def test_a_key_is_said_once_for_each_way_it_is_declared(command):
    assert command("--help", "accum.steps").out.count("accum.steps=1\n") == 1
    shown = command("--help", "optim.lr").out.splitlines()
    assert [line for line in shown if "optim.lr=" in line] == ["  optim.lr=0.001", "  optim.lr=0.1", "  optim.lr=0.05"]
    assert [line.split("=")[-1] for line in shown if line.startswith("With")] == [
        "adam, adamw, keras",
        "sgd",
        "adafactor",
    ]


def test_several_names(command):
    answer = command("--help", "accum.steps", "batch_size", "job=train")
    assert "  batch_size=64\n" in answer.out
    assert answer.out.endswith("\n\njob=train: Train a model, or continue its run.\n")


def test_files_of_ones_own(command, own_file):
    own_file("model/compact.yaml", "# A small one.\ndefaults:\n  - resnet20\nunits: [1, 1, 1]\n")
    assert "compact                 A small one." in command("--help", "model", "--config-dir", "own").out
    assert "model.units=[1,1,1]" in command("--help", "model=compact", "--config-dir", "own").out


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("optm", "--help optm: no such group, choice or key; did you mean optim"),
        ("accum.step", "--help accum.step: no such group, choice or key; did you mean accum.steps"),
        ("zzzz", "--help zzzz: no such group, choice or key; accumtrain --help shows the groups"),
        ("optim=adm", "--help optim=adm: no such choice; did you mean adam or adamw?"),
        ("optim=", "--help optim=: no such choice; choose from adafactor"),
    ],
)
def test_what_there_is_not(name, error, refused):
    assert f"error: {error}" in refused("--help", name)


def test_the_name_of_a_run_says_which_settings_are_not_those_of_the_run(command):
    text = " ".join(command("--help", "run.name").out.split())
    kept, own = text.split("These are not kept, and are always the command's own: ")
    assert kept.endswith("uses the run's settings for all keys that it does not give. ")
    keys = [key.partition(".") for key in keys_with(Role.COMMAND, to_mapping(Config()))]
    names = {".".join((group, key)) if group == "run" else group for group, _, key in keys}
    assert set(own.rstrip(".").replace(" and ", ", ").split(", ")) == names - {"run.name"}
