"""The command line: Hydra composes, config checks, a job runs, and the exit code says how it went.

TensorFlow is imported when a job begins, so help, completion and mistakes are answered at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
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

from accumtrain import __version__, environment, sweep
from accumtrain.config import CONF_DIR, Config, from_mapping
from accumtrain.console import fail, say
from accumtrain.errors import AccumtrainError, ConfigError, Preempted
from accumtrain.hydra_errors import USAGE_ERRORS, explain
from accumtrain.runs import Run, run_name
from accumtrain.usage import help_text

INTERRUPTED = 130  # as a shell reports Ctrl-C: stopped before there was a state to save
STOPPED = (Preempted.exit_code, INTERRUPTED)
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
    _call_hydra(lambda composed: codes.append(_run_composed(composed)[0]))
    return codes[0] if codes else 0  # there is no job behind --cfg or --info


def _run_composed(composed: DictConfig) -> tuple[int, Config | None]:
    """Runs the job that Hydra composed. Returns the exit code, and the configuration unless it was refused."""
    code, config = _guarded(partial(_read_config, composed, HydraConfig.get().overrides.task))
    if config is not None:
        code, _ = _guarded(partial(_run_job, config))
    return code, config


def _read_config(composed: DictConfig, overrides: Sequence[str]) -> Config:
    config = from_mapping(cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True)))
    return replace(config, run=replace(config.run, name=run_name(config, overrides)))


def _run_job(config: Config) -> None:
    if config.job != "plan":  # its probes have processes of their own, and this one shall take no memory
        environment.prepare(config.device, probed=config.job in PROBED)
    importlib.import_module(f"accumtrain.jobs.{config.job}").run(config)


# --- a sweep ----------------------------------------------------------------------------------------------------


def _run_sweep(options: Namespace) -> int:
    _check_jobs(options)
    with tempfile.TemporaryDirectory(prefix="accumtrain-sweep-") as scratch:
        os.environ[sweep.SCRATCH] = scratch
        try:
            _call_hydra(_run_sweep_job)
        except KeyboardInterrupt:
            say("the sweep was stopped; the same command continues it")
        outcomes = sweep.collect(Path(scratch))
    sweep.report(outcomes)
    return sweep.exit_code(outcomes)


def _run_sweep_job(composed: DictConfig) -> None:
    """One job of a sweep: it leaves its outcome and never fails, so that the others run too."""
    job, overrides = HydraConfig.get().job, list(HydraConfig.get().overrides.task)
    say(f"\nrun {job.num + 1} of the sweep: {' '.join(overrides)}")
    code, config = _run_composed(composed)
    path, kind = (None, None) if config is None else (str(Run(config).path), config.job)
    sweep.leave(Path(os.environ[sweep.SCRATCH]), job.num, sweep.Outcome(overrides, path, kind, code))
    if code in STOPPED:
        raise KeyboardInterrupt


def _check_jobs(options: Namespace) -> None:
    """Checks every job of a sweep before the first one starts, as far as Hydra's own sweeper and conf/ make them."""
    if options.config_dir or options.config_path or options.config_name or "hydra/sweeper" in str(options.overrides):
        return
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    with hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        (jobs,) = BasicSweeper.split_arguments(parser.parse_overrides(options.overrides), max_batch_size=None)
        sweep.check_distinct([_read_config(hydra.compose("config", job), job) for job in jobs])


# --- both -------------------------------------------------------------------------------------------------------


def _call_hydra(task: Callable[[DictConfig], None]) -> None:
    """Parses sys.argv and calls `task` with each composed configuration, or answers --cfg and the like."""
    try:
        hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")(task)()
    except ValueError as error:  # two options that exclude each other
        raise ConfigError(f"{error}; accumtrain --help shows examples") from error


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
    except Exception:
        traceback.print_exc()
        fail("this is a bug in accumtrain, not a mistake of yours; please report it with the lines above")
        return 1, None


def _tell(error: AccumtrainError) -> int:
    if os.environ.get("ACCUMTRAIN_TRACEBACK") == "1":
        traceback.print_exception(error)
    (say if isinstance(error, Preempted) else fail)(str(error))
    return error.exit_code
