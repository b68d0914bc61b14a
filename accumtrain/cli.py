"""The command line: Hydra composes, config checks, a job runs, and the exit code says how it went.

TensorFlow is imported when a job begins, so help, completion and mistakes are answered at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from accumtrain import __version__, environment
from accumtrain.config import CONF_DIR, Config, from_mapping
from accumtrain.console import fail, say, warn
from accumtrain.errors import AccumtrainError, ConfigError, Preempted
from accumtrain.hydra_errors import USAGE_ERRORS, explain, explain_plugin
from accumtrain.runs import Run, run_name
from accumtrain.sweep import comparison, folder, process
from accumtrain.sweep.outcome import INTERRUPTED, Outcome
from accumtrain.sweep.stop import stoppable
from accumtrain.usage import help_text

STOPPED = (Preempted.exit_code, INTERRUPTED)
IN_PROCESS = "basic"  # the launcher of Hydra's own: one job after the other, in this process
PROBED = ("train", "bench")  # the jobs that learn before they start whether they fit into the memory

Result = TypeVar("Result")


def main() -> None:
    """Entry point of the console script `accumtrain`."""
    sys.exit(command())


def command() -> int:
    """Runs the command in sys.argv. Returns its exit code: that of errors.py, or 130.

    ACCUMTRAIN_TRACEBACK=1 or HYDRA_FULL_ERROR=1 in the environment shows tracebacks with the messages.
    """
    if "--version" in sys.argv[1:]:
        print(f"accumtrain {__version__}")
        return 0
    options = get_args_parser().parse_args()
    if options.help:
        own = [Path(options.config_dir)] if options.config_dir else []
        print(help_text([CONF_DIR, *own]))
        return 0
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        os.environ["ACCUMTRAIN_TRACEBACK"] = "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then hands its errors to us instead of printing them
    is_sweep = options.multirun or "hydra.mode=MULTIRUN" in options.overrides
    code, result = _guarded(partial(_run_sweep, options) if is_sweep else _run_single)
    return code if result is None else result


# --- one job ----------------------------------------------------------------------------------------------------


def _run_single() -> int:
    codes: list[int] = []
    _call_hydra(lambda composed: codes.append(_run_composed(composed)))
    return codes[0] if codes else 0  # there is no job behind --cfg or --info


def _run_composed(composed: DictConfig) -> int:
    """Runs the job that Hydra composed. Returns the exit code."""
    return _guarded(lambda: _run_job(_read_config(composed, HydraConfig.get().overrides.task)))[0]


def _read_config(composed: DictConfig, overrides: Sequence[str]) -> Config:
    config = from_mapping(cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True)))
    return replace(config, run=replace(config.run, name=run_name(config, overrides)))


def _run_job(config: Config) -> None:
    if config.job != "plan":  # its probes have processes of their own, and this one shall take no memory
        environment.prepare(config.device, probed=config.job in PROBED)
    importlib.import_module(f"accumtrain.jobs.{config.job}").run(config)


# --- a sweep ----------------------------------------------------------------------------------------------------


def _run_sweep(options: Namespace) -> int:
    configs = _checked(options)
    launcher = _given(options, "hydra/launcher", IN_PROCESS)
    default = OmegaConf.load(CONF_DIR / "config.yaml").run.dir
    run_dir = configs[0].run.dir if configs else _given(options, "run.dir", default)
    with folder.opened(Path(run_dir)) as place:

        def run_job(composed: DictConfig) -> float:  # what a launcher sends elsewhere: this, with the folder
            return _run_sweep_job(place, composed)

        stops = nullcontext() if launcher == IN_PROCESS else stoppable(place)
        code, _ = _guarded(partial(_launch, run_job, stops))
        folder.end(place)
        outcomes = folder.collect(place)
    if outcomes:
        comparison.report(outcomes)
    return comparison.exit_code(outcomes) or code


def _launch(run_job: Callable[[DictConfig], float], stops: AbstractContextManager[None]) -> None:
    try:
        with stops:
            _call_hydra(run_job)
    except KeyboardInterrupt:
        say("the sweep was stopped; the same command continues it")


def _run_sweep_job(place: Path, composed: DictConfig) -> float:
    """One job of a sweep: it leaves its outcome and never fails, so that the others run too. Returns its objective."""
    hydra_config = HydraConfig.get()
    number, overrides = hydra_config.job.num, list(hydra_config.overrides.task)
    apart = hydra_config.runtime.choices["hydra/launcher"] != IN_PROCESS
    if apart and not folder.wanted(place):
        return 0.0
    label = f"run {number + 1}"
    say(f"\n{label} of the sweep: {' '.join(overrides)}")
    code, config = _guarded(partial(_read_config, composed, overrides))
    if config is not None and apart:
        folder.leave(place, number, _outcome(overrides, config, None))
        code = process.run(config, label, wanted=partial(folder.wanted, place))
    elif config is not None:
        code, _ = _guarded(partial(_run_job, config))
    outcome = _outcome(overrides, config, code)
    folder.leave(place, number, outcome)
    if code in STOPPED and not apart:
        raise KeyboardInterrupt
    return outcome.objective


def _outcome(overrides: list[str], config: Config | None, code: int | None) -> Outcome:
    path, job = (None, None) if config is None else (str(Run(config).path), config.job)
    return Outcome(overrides, path, job, code)


def job_main() -> None:
    """Entry point of a job that a sweep runs in a process of its own."""
    sys.exit(_guarded(lambda: _run_job(process.receive()))[0])


def _given(options: Namespace, key: str, default: str) -> str:
    """The plain value that the command gives to `key`: neither several nor one to interpolate."""
    given = dict(override.partition("=")[::2] for override in options.overrides)
    value = given.get(key, default).strip("'\"")
    return default if set(value) & set("$,") else value


def _checked(options: Namespace) -> list[Config]:
    """Checks every job of a sweep before the first one starts, as far as Hydra's own sweeper and conf/ make them.

    Returns the configurations that are allowed, none where others make them.
    One that will be refused is told of now, and keeps the others from nothing: of a grid not every corner may do.
    """
    if options.config_dir or options.config_path or options.config_name or "hydra/sweeper" in str(options.overrides):
        return []
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    configs: list[Config] = []
    refused: dict[int, ConfigError] = {}
    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        (jobs,) = BasicSweeper.split_arguments(parser.parse_overrides(options.overrides), max_batch_size=None)
        for number, job in enumerate(jobs, start=1):
            try:
                configs.append(_read_config(hydra.compose("config", job), job))
            except ConfigError as error:
                refused[number] = error
    if not configs:
        raise next(iter(refused.values()))
    for number, reason in refused.items():
        warn(f"run {number} of the sweep will be refused: {reason}")
    comparison.check_distinct(configs)
    return configs


# --- both -------------------------------------------------------------------------------------------------------


def _call_hydra(task: Callable[[DictConfig], Any]) -> None:
    """Parses sys.argv and calls `task` with each composed configuration, or answers --cfg and the like."""
    try:
        hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")(task)()
    except ValueError as error:  # two options that exclude each other
        raise explain_plugin(error) or ConfigError(f"{error}; accumtrain --help shows examples") from error


def _guarded(action: Callable[[], Result]) -> tuple[int, Result | None]:
    """Calls `action`. Returns 0 and its result, or tells the user what went wrong and returns the exit code."""
    try:
        return 0, action()
    except AccumtrainError as error:
        return _tell(error), None
    except USAGE_ERRORS as error:
        return _tell(explain(error)), None
    except KeyboardInterrupt:
        fail("interrupted before there was anything to save")
        return INTERRUPTED, None
    except Exception as error:
        if plugin := explain_plugin(error):
            return _tell(plugin), None
        traceback.print_exc()
        fail("this is a bug in accumtrain, not a mistake of yours; please report it with the lines above")
        return 1, None


def _tell(error: AccumtrainError) -> int:
    if os.environ.get("ACCUMTRAIN_TRACEBACK") == "1":
        traceback.print_exc()
    (say if isinstance(error, Preempted) else fail)(str(error))
    return error.exit_code
