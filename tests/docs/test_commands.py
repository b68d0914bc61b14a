"""Every command in README and docs is composed here: none names a key, choice, target or file that is not there."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import hydra
import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

from accumtrain.cli.compose import plain_values, read_config
from accumtrain.cli.overrides import for_hydra
from accumtrain.config.keys import CONF_DIR

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / page
        for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "runs/README.md", "benchmarks/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
PROGRAMS = ("accumtrain", "make", "pip", "python", "srun", "sbatch", ".venv/bin/")


def commands(page: Path) -> list[str]:
    """The commands in the page's blocks and in its `inline code`, without comments."""
    text = page.read_text()
    blocks = re.findall(r"^```(?:bash|sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    outside = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", outside)]
    found = [re.sub(r"\s+#.*", "", line).replace("$(ARGS)", "").strip() for line in lines]
    begins = re.compile(rf"([A-Z_]+=\S+ +)*({'|'.join(map(re.escape, PROGRAMS))})")  # behind variables
    return [line for line in found if begins.match(line) and " " in line and "..." not in line and "<" not in line]


CASES = [pytest.param(line, id=f"{page.name}: {line[:60]}") for page in PAGES for line in dict.fromkeys(commands(page))]


@pytest.fixture(autouse=True)
def with_every_tracker(monkeypatch):
    """As if the extras that log.tracker needs were installed."""
    monkeypatch.setattr("accumtrain.config.check.find_spec", lambda package: package)


@pytest.fixture(autouse=True)
def with_a_published_model(monkeypatch, tmp_path):
    """As if the folder that pages name were here."""
    shutil.copytree(ROOT / "tests" / "contract" / "bert", tmp_path / "minilm")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", CASES)
def test_command_is_one(line, monkeypatch):
    program, *arguments = shlex.split(line)
    while "=" in program:  # a variable of the environment stands before it
        monkeypatch.setenv(*program.split("=", 1))
        program, *arguments = arguments
    if program == "srun":
        program, *arguments = arguments
    if program == "sbatch":
        options = len([each for each in arguments if each.startswith("--")])
        assert (ROOT / "examples" / "slurm" / arguments[options]).exists()
        program, arguments = "accumtrain", arguments[options + 1 :]
    name = Path(program).name
    if name == "accumtrain" and arguments[:1] != ["[group=choice"]:
        check_accumtrain(arguments)
    elif name == "make":
        check_make(arguments)
    elif name == "pip":
        check_pip(arguments)
    elif name == "python":
        check_python(arguments)
    elif program.startswith(".venv/bin/"):
        assert name in ("accumtrain", "pytest", "ruff", "mypy", "pre-commit"), line


def check_accumtrain(arguments):
    """The overrides compose, in a sweep those of each job."""
    if arguments[:1] == ["--workers"]:
        assert arguments[1].isdecimal()
        arguments = arguments[2:]
    if arguments[:1] in (["--help"], ["--version"], ["--cfg"], ["--shell-completion"]):
        return
    sweep = "-m" in arguments or "--multirun" in arguments
    words = [each for each in arguments if not each.startswith("-")]
    overrides = [each for each in for_hydra(words) if not each.startswith("hydra")]
    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        jobs = [overrides]
        if sweep:
            parser = OverridesParser.create(GlobalHydra.instance().config_loader())
            swept = [each for each in overrides if "tag(" not in each and "interval(" not in each]
            (jobs,) = BasicSweeper.split_arguments(parser.parse_overrides(swept), max_batch_size=None)
        for job in jobs:
            read_config(plain_values(hydra.compose("config", job)), job)


def check_make(arguments):
    """The target is there, and what ARGS hands on composes."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    variables = dict(each.split("=", 1) for each in arguments if "=" in each)
    target = next(each for each in arguments if "=" not in each)
    assert target in targets
    if target in ("train", "sweep", "workers", "tpu", "tpu-compile"):
        check_accumtrain([*["-m"] * (target == "sweep"), *shlex.split(variables.get("ARGS", ""))])


def check_pip(arguments):
    """An extra of ours that is installed is one."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in re.findall(r"accumtrain\[(\w+)\]", " ".join(arguments)):
        assert name in extras


def check_python(arguments):
    """A script of ours is there and has the options. `mine.py` is run by test_library.py."""
    script, *options = arguments
    if script.startswith(("benchmarks/", "examples/", "tests/")):
        text = (ROOT / script).read_text()
        flags = [each for each in options if each.startswith("--")]
        assert all(f'"{flag}"' in text for flag in flags), flags
    elif script != "-c" and not (ROOT / "examples" / script).exists():
        assert script in ("mine.py", "-m"), arguments
