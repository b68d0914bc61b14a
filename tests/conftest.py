"""Fixtures for the shell around the engine. No TensorFlow here."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import hydra
import pytest

from accumtrain import dispatch
from accumtrain.cli import command as cli
from accumtrain.cli.choices import offer_entries
from accumtrain.cli.compose import plain_values
from accumtrain.cli.overrides import for_hydra
from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import CONF_DIR
from accumtrain.config.read import from_mapping
from accumtrain.config.schema import Config
from accumtrain.measure import memory  # noqa: F401 - whose check also stays where its job is replaced
from accumtrain.process import environment, tpu_runtime
from accumtrain.process.machine import cpu
from accumtrain.runs.kernels import NEURAL
from tests.run_files import RUNS

# before a test imports TensorFlow
os.environ.update(environment.VARIABLES | tpu_runtime.quiet_environment(), TF_CPP_MIN_LOG_LEVEL="3")
if not NEURAL.intersection(cpu()["instructions"]):  # TensorFlow's default there, whatever the images
    os.environ.setdefault(environment.ONEDNN, "0")
os.environ.setdefault(environment.KERNELS_16BIT, "1")  # the default, whatever the processor
# before a test imports Keras, which would find the weights that its user has downloaded
KERAS_HOME = tempfile.TemporaryDirectory(prefix="keras-")  # removed at the end
os.environ["KERAS_HOME"] = KERAS_HOME.name

# a shell in the background, and nohup, start commands with these ignored, and so would be all processes of the tests
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

TENSORFLOW_TPU = "tensorflow_tpu" in {found.name for found in importlib.metadata.distributions()}
# by the marker of the tests that need it
MISSING_BESIDE_TENSORFLOW_TPU = {
    "xla": "tensorflow-tpu has no XLA for the CPU",
    "launchers": "make tpu RUNTIME=tensorflow installs no launchers",
}


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix() in RUNS:
            item.add_marker(pytest.mark.run)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, reason in MISSING_BESIDE_TENSORFLOW_TPU.items():
        if TENSORFLOW_TPU and item.get_closest_marker(marker):
            pytest.skip(reason)


@pytest.hookimpl(optionalhook=True, trylast=True)  # that of pytest-xdist; after it has said what it knows
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """End the run, red, once a worker has died.

    pytest-xdist would give its files to another worker, those that it has finished too, which then waits for ever; and
    it ends green if no test was running.
    """
    if error:
        scheduler = node.config.pluginmanager.getplugin("dsession").sched
        running = scheduler.remove_node(node) if node in scheduler.nodes else None
        pytest.exit(f"worker {node.gateway.id} died {f'in {running}' if running else 'outside of tests'}", returncode=1)


class Answer(NamedTuple):
    """What a command did: its exit code and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and the processes that they start, find nothing in the user's cache folder and leave nothing there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are saved in a test, in order."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    save = Figure.savefig

    def noted_savefig(figure: Figure, *arguments: Any, **options: Any) -> None:
        save(figure, *arguments, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", noted_savefig)
    return figures


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Answer]:
    """Runs `accumtrain *arguments` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("HYDRA_FULL_ERROR", "ACCUMTRAIN_TRACEBACK", "ACCUMTRAIN_SWEEP_DIR"):
        monkeypatch.setenv(name, "")  # so that what the command sets is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "prepare", lambda device, **_: None)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["accumtrain", *arguments])
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        try:
            code = cli.command()
        except SystemExit as stop:  # argparse's, and Hydra's after --help
            code = int(stop.code or 0)
        return Answer(code, *capfd.readouterr())

    return run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output as on a terminal of 80 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def fake_job(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Config]]:
    """Puts a function in the place of a job; returns the list of configurations it will have seen.

    It computes nothing, so no kernels are chosen for it, as on processors where one kind is the faster anyway.
    """
    monkeypatch.setattr(dispatch, "choose_kernels", lambda config, job: nullcontext())

    def put(run: Callable[[Config], Any], name: str = "train") -> list[Config]:
        seen: list[Config] = []

        def job(config: Config) -> Any:
            seen.append(config)
            return run(config)

        module, _, function = str(JOBS[name].run).partition(":")
        light = vars(import_module(module)) if str(JOBS[name].check).startswith(f"{module}:") else {}
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{**light, function: job}))
        return seen

    return put


@pytest.fixture
def seen(fake_job: Callable[..., list[Config]]) -> list[Config]:
    """The configurations that job=train gets, which does nothing."""
    return fake_job(lambda config: None)


@pytest.fixture
def refused(command: Callable[..., Answer]) -> Callable[..., str]:
    """Runs a command that is a mistake, and returns its message."""

    def run(*arguments: str) -> str:
        answer = command(*arguments)
        assert answer.code == 2
        return answer.err

    return run


def composed(*overrides: str) -> Config:
    """Compose and check the configuration of `overrides`, without a command line."""
    offer_entries()
    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        found = hydra.compose("config", for_hydra(overrides))
    return from_mapping(plain_values(found))


@pytest.fixture(scope="session")
def compose() -> Callable[..., Config]:
    return composed
