"""From the command in sys.argv to checked configurations: Hydra composes them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

from hydra import version
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from accumtrain.cli.hydra_guard import CompletionLoader, Loader, check_overrides, explain_option, explain_plugin_error
from accumtrain.cli.overrides import find_given_value, for_hydra, given_keys
from accumtrain.cli.run_values import add_data_choice, check_files, merge_run_values, set_expected_data
from accumtrain.config.interpolation import FromEnvironment, resolve_interpolations, restore_expressions
from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import CONF_DIR
from accumtrain.config.read import OverLimitError, check_yaml, explain_old_tokens, from_mapping
from accumtrain.config.schema import Config
from accumtrain.console import escape_lines
from accumtrain.errors import ConfigError
from accumtrain.fields import LOCAL_PATH, walk_values
from accumtrain.runs.names import learned_values, run_name


def read_options() -> Namespace:
    """Return the options and overrides in sys.argv, the overrides as Hydra takes them.

    Raises:
        ConfigError: there is no such option, it would run code, or an override changes what Hydra itself does.
        SystemExit: an option lacks its value; argparse has said so.
    """
    options, unknown = get_args_parser().parse_known_intermixed_args()
    if unknown:
        raise explain_option(unknown[0])
    if options.experimental_rerun is not None:
        raise ConfigError(
            f"--experimental-rerun {options.experimental_rerun}: would load a pickle, which can run any code; "
            "give the command of the run again"
        )
    if options.config_path is not None:
        raise ConfigError(
            f"--config-path {options.config_path}: the configuration of accumtrain can't be replaced; "
            f"add your own folder to it with --config-dir {options.config_path}"
        )
    if options.hydra_help:
        raise ConfigError("--hydra-help: is not available; accumtrain --help shows what there is")
    asked = [options.run, options.multirun, options.cfg, options.info, options.shell_completion]
    if sum(map(bool, asked)) > 1:
        raise ConfigError(
            "only one of --run, --multirun, --cfg, --info and --shell-completion can be given; leave out all but one"
        )
    if options.resolve and not options.cfg:
        raise ConfigError("--resolve: works only with --cfg; add --cfg job")
    if not options.shell_completion:
        check_overrides(options.overrides)
    if find_given_value(options.overrides, "data", "") == "tokens":
        raise ConfigError(explain_old_tokens(given_keys(options.overrides, "data")))
    options.config_name = options.config_name or "config"  # a config of --config-dir has "config" among its defaults
    if not options.help:  # with --help the arguments are names to explain, not overrides
        options.overrides = add_data_choice(for_hydra(options.overrides))
    return options


@contextmanager
def open_hydra(options: Namespace) -> Iterator[Hydra]:
    """Yield a Hydra that composes from conf/ and --config-dir, within the limits of hydra_guard.py.

    Raises:
        ConfigError: --config-dir is no folder.
    """
    version.setbase("1.3")
    path = create_config_search_path(str(CONF_DIR))
    if options.config_dir is not None:
        LOCAL_PATH.check("--config-dir", options.config_dir)
        folder = Path(options.config_dir)
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {folder}: is not a folder; name one that holds <group>/<choice>.yaml")
        _check_size(folder)
        path.prepend("command-line", f"file://{folder.absolute()}", SearchPathQuery(provider="schema"))
    hydra = Hydra("accumtrain", (CompletionLoader if options.shell_completion else Loader)(path))
    GlobalHydra.instance().initialize(hydra)
    try:
        yield hydra
    finally:
        GlobalHydra.instance().clear()


def _check_size(folder: Path) -> None:
    """Raise ConfigError if a YAML file of a folder is over the limits of `check_yaml`. Hydra finds other mistakes."""
    for file in sorted(folder.rglob("*.yaml")):
        try:
            with suppress(YAMLError, OSError, UnicodeDecodeError):
                check_yaml(file.read_text(encoding="utf-8"))
        except OverLimitError as error:
            raise ConfigError(
                f"--config-dir {folder}: {file} can't be read: {error}; fix that file or move it away"
            ) from error


def compose_choice(options: Namespace, group: str, choice: str) -> dict[str, Any]:
    """Return the values that a choice gives to the keys of its group, with MISSING where the user must give one."""
    with open_hydra(options) as hydra:
        overrides = for_hydra([f"{group}={choice}"])
        composed = hydra.compose_config(options.config_name, overrides, RunMode.RUN, with_log_configuration=False)
    return cast(dict[str, Any], OmegaConf.to_container(composed[group], resolve=False))


def call_hydra(options: Namespace, task: Callable[[DictConfig], Any], *, multirun: bool = False) -> None:
    """Answer --cfg and the like. Else call `task` with each composed configuration, of which a sweep has several."""
    name, overrides = options.config_name, options.overrides
    with open_hydra(options) as hydra:
        try:
            if options.cfg:
                _show(hydra, options)
            elif options.shell_completion:
                hydra.shell_completion(name, overrides)
            elif options.info:
                hydra.show_info(options.info, name, overrides)
            elif multirun:
                hydra.multirun(name, task, [*overrides, "hydra.mode=MULTIRUN"])
            else:
                hydra.run(name, task, [*overrides, "hydra.mode=RUN"])
        except ValueError as error:  # of a sweep, or of --shell-completion
            raise explain_plugin_error(error) or ConfigError(f"{error}; accumtrain --help shows examples") from error


def _show(hydra: Hydra, options: Namespace) -> None:
    shown = StringIO()
    try:
        with redirect_stdout(shown):
            hydra.show_cfg(options.config_name, options.overrides, options.cfg, options.package, options.resolve)
    except SystemExit as ended:
        raise ConfigError(f"--package {options.package}: no such group; accumtrain --cfg job shows all") from ended
    print(escape_lines(shown.getvalue()), end="")


def list_user_folders(options: Namespace) -> list[Path]:
    """Return the folders of choices that the command adds to the packaged ones."""
    return [Path(options.config_dir)] if options.config_dir else []


def list_job_overrides() -> list[str]:
    """Return the overrides of the composed job as written. Hydra would resolve their interpolations."""
    return cast(list[str], OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False))


def plain_values(composed: DictConfig) -> dict[str, Any]:
    """Return the composed values without Hydra's own. Only interpolations that read the environment are left."""
    raw = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
    raw.pop("hydra", None)
    return cast(dict[str, Any], restore_expressions(resolve_interpolations(raw)))


def read_config(values: Mapping[str, Any], overrides: Sequence[str], swept: Collection[str] = ()) -> Config:
    """Return the checked configuration. That of a run has a name, if need be derived from its overrides.

    Args:
        swept: the keys that vary, if the overrides are those of a job in a sweep.

    Raises:
        ConfigError: a value breaks a rule, or is read from the environment although it must be written down. Or it
            comes from a file of the command that its other choices contradict.
        CheckpointError: the run that the job needs has a config.yaml that can't be read.
    """
    check_files(values, overrides)
    config = from_mapping(set_expected_data(merge_run_values(values, overrides, swept), overrides))
    _check_written_down(config)
    if JOBS[config.job].scope == "runs":
        return config
    expressions: dict[str, Any] = {
        key: text.expression for key, text in asdict(config.data).items() if isinstance(text, FromEnvironment)
    }
    # a name is made of expressions, not of what they stand for
    name = run_name(replace(config, data=replace(config.data, **expressions)), overrides, swept)
    return replace(config, run=replace(config.run, name=name))


def _check_written_down(config: Config) -> None:
    learned = learned_values(asdict(config)) | {"run.name": config.run.name}
    for where, text in walk_values(learned):
        if isinstance(text, FromEnvironment):
            key, _, _ = where.partition("[")  # an item of a list can't be given alone
            raise ConfigError(
                f"{key}={text.expression}: is written into the run's files or its name, and a value of the "
                f'environment may be a secret; if it is not, let the shell put it in: {key}="$NAME"'
            )
