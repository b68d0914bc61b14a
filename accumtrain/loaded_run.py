"""`load_run`: a trained run in Python, which predicts and is evaluated as the jobs predict and evaluate do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from accumtrain.config.check import check_answers, check_config
from accumtrain.config.compiled import KIND
from accumtrain.config.jobs import JOBS, cell
from accumtrain.config.read import expand_home, expand_homes, to_mapping
from accumtrain.config.roles import keys_with
from accumtrain.config.schema import Config
from accumtrain.console import format_measure, format_things, silenced, warn
from accumtrain.data.config import DataConfig
from accumtrain.data.local_files import list_first
from accumtrain.dispatch import settle_kept_activations
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import LOCAL_PATH, Role, format_value, suggest_names
from accumtrain.process import environment
from accumtrain.runs.config import BEST_STATE, STATES
from accumtrain.runs.contents import read_config, read_records, read_run_config, read_summary
from accumtrain.runs.kernels import choose_kernels
from accumtrain.train.tell.remedies import explain_errors

if TYPE_CHECKING:
    from accumtrain.backprop.model import Model
    from accumtrain.data.source import Dataset
    from accumtrain.devices.found import Devices
    from accumtrain.train.trained.load import Trained

AnyPath: TypeAlias = str | os.PathLike[str]
SHOWN_NAMES = 3  # of classes, labels or numbers, in a line


def load_run(run: AnyPath, *, run_dir: AnyPath = "runs", state: str = BEST_STATE) -> LoadedRun:
    """Load a trained run: its model in the best or the last state, to predict and to evaluate.

    With `ema.decay` the weights are the averages. TensorFlow computes on the first GPU, or else on the CPU. Nothing is
    written, and only warnings are printed.

    Args:
        run: the name of a run in `run_dir`, or the path of a run's folder.
        run_dir: the folder of the runs.
        state: `best` or `last`. Without any evaluation both are one.

    Raises:
        ConfigError: there is no such run, or its model exists only in the program that trained it.
        CheckpointError: the run has no checkpoint yet, or its files can't be read.
        DataError: `inputs.json` of the run is gone, and its data can't be opened either.
    """
    if state not in STATES:
        raise ConfigError(f"state={format_value(state)}: must be one of {', '.join(STATES)}")
    folder = _find_folder(run, Path(run_dir))
    if read_config(folder / "config.yaml")["model"].get("kind") == KIND:
        raise ConfigError(
            f"{folder} is a run of accumtrain.fit, whose model is in the program that called it: use that model, which "
            "has the trained weights after the call, or model.save it there"
        )
    config = read_run_config(folder, job="predict", state=state, device={"kind": KIND})
    return LoadedRun(folder, settle_kept_activations(config, JOBS["predict"]))


def _find_folder(run: AnyPath, run_dir: Path) -> Path:
    """Return the folder of a run. Raise ConfigError if there is none."""
    text = expand_home(os.fspath(run))
    LOCAL_PATH.check("run", text)
    LOCAL_PATH.check("run_dir", str(run_dir))
    for folder in (run_dir / text, Path(text)):
        if (folder / "config.yaml").is_file():
            return folder
    known = sorted(file.parent.name for file in run_dir.glob("*/config.yaml"))
    remedy = suggest_names(text, known) if known else "train one first, or give the run_dir that it is in"
    raise ConfigError(f"load_run({text!r}): no run of that name in {run_dir}, and no folder of a run; {remedy}")


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """The answers of a model for images, in their order.

    Attributes:
        records: the answer to each image in words, as in a line of predictions.jsonl, without the cells of a table.
        answers: float32 [N, K]: probabilities of the classes or labels, or numbers in their units. Of pixels an array
            [height, width, K] for each image.
        names: those of the K classes, labels or numbers.
        files: the file of each image, or the name of each other input; empty for arrays.
    """

    records: list[dict[str, Any]]
    answers: Any
    names: list[str]
    files: list[str]

    def __repr__(self) -> str:
        of = list_first(self.names, SHOWN_NAMES)
        return f"<accumtrain predictions: {format_things(len(self.records), 'example')} by {of}>"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a row for each example: its `file`, its `class` if it has one, the answers.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas  # no other part of accumtrain needs it
        except ModuleNotFoundError as error:
            raise ConfigError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        columns: dict[str, Any] = {"file": self.files} if self.files else {}
        if all("class" in record for record in self.records):
            columns["class"] = self.classes
        return pandas.DataFrame({**columns, **dict(zip(self.names, self.answers.T, strict=True))})

    @property
    def classes(self) -> list[str]:
        """The most probable class of each image, by its name.

        Raises:
            ConfigError: the task of the run is another than classify.
        """
        if any("class" not in record for record in self.records):
            raise ConfigError("the run was not trained with task=classify, so there are no classes: use records")
        return [record["class"] for record in self.records]

    @property
    def probabilities(self) -> np.ndarray:
        """The answers of task=classify, whose rows sum to 1, and of task=multilabel."""
        return self.answers

    @property
    def class_names(self) -> list[str]:
        return self.names


class Evaluation(dict[str, Any]):
    """The content of evaluation.json, a dict that is shown by its means and its keys."""

    def __repr__(self) -> str:
        split = next(name for name in ("test", "val") if name in self)
        means = ", ".join(f"{name} {cell(value, format_measure)}" for name, value in self[split].items())
        return f"<accumtrain evaluation, {split}: {means}; its keys: {', '.join(self)}>"


class LoadedRun:
    """A trained run in one of its states, made by `load_run`.

    Attributes:
        path: the folder of the run.
        config: its configuration, an `accumtrain.Config`.
        model: an `accumtrain.Model` from prepared images [N, H, W, C] to logits, float32 [N, classes]. `predict` takes
            images as they are.
        step: the update after which the state was saved.
        class_names: the names of the classes, in the order of the model's outputs.
        shape: that of an example that the model takes; of images height, width and channels.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path, self.config = path, config
        with self._computing():
            from accumtrain.devices.resolve import resolve_devices  # with TensorFlow, once it is prepared
            from accumtrain.train.trained.load import find_trained_on, trained_model

            self._devices: Devices = resolve_devices(config.device)
            self._noted, fingerprint = find_trained_on(config)
            with explain_errors(config, None), self._devices.strategy.scope():
                self._trained: Trained = trained_model(config, self._noted, fingerprint, config.state)

    def __repr__(self) -> str:
        return f"<accumtrain run {self.path}: {self.config.model.label}, {self.config.state} state, update {self.step}>"

    @property
    def model(self) -> Model:
        return self._trained.model

    @property
    def step(self) -> int:
        return self._trained.saved.step

    @property
    def class_names(self) -> list[str]:
        return list(self._noted.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._noted.inputs.shape

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of the run so far, a dictionary for each line of `metrics.jsonl`.

        Each has `step`, `epoch`, `split`, `seconds`, `loss` and the metrics of the run.

        Raises:
            CheckpointError: the file is damaged.
        """
        return read_records(self.path)

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of `summary.json`, such as the `best` metrics; None while the run has not ended.

        Raises:
            CheckpointError: the file is damaged.
        """
        return read_summary(self.path)

    def predict(self, images: Any) -> Predictions:
        """Return the probabilities of each class for images, which are prepared as those of the run were.

        Args:
            images: a file, a folder that is searched for images, or a glob; a list of these; or an array
                [N, H, W, C], or [N, H, W] of grey images, of any height and width. An array holds floats 0..1, or
                integers 0..255 (of data=digits 0..16). Of other inputs: an array [N, ...] of them, or paths of files.

        Raises:
            DataError: there are no images, some can't be used, or the array has another shape or range.
            ConfigError: the model does not answer its task.
        """
        check_answers(self.config)
        with self._computing():
            from accumtrain.train.trained.predict import prediction_batch, predictions

            files, data = self._open(images)
            split = data.splits["test"]
            batch = prediction_batch(self.config, split.size, self._devices.replicas)
            answer, used, found, kept = self._trained.answer, list[int](), list[np.ndarray](), list[np.ndarray]()
            with explain_errors(self.config, data):
                answers = predictions(self._answers, data, batch=batch, strategy=self._devices.strategy)
                for indices, values in data.inputs.join(split, answers):
                    used += map(int, indices)
                    found.extend(values)
                    kept.append(answer.keep(values, []))
            self._tell_bad(data, split.undivided.size)
        records = answer.tell(np.concatenate(kept)).records
        is_one_array = len({values.shape for values in found}) == 1
        return Predictions(
            records,
            np.stack(found) if is_one_array else found,
            list(answer.columns),
            [str(files[index]) for index in used] if files else [],
        )

    def evaluate(self, data: AnyPath | DataConfig | None = None) -> Evaluation:
        """Return loss and metrics on the run's own test split, or on all of other data with labels.

        Without a test split it is the validation split. Images are prepared, and classes mapped, as by job=evaluate.

        Args:
            data: None is the run's own data. A path is data of the same kind at another place. A configuration such as
                `accumtrain.NpzConfig(path="new.npz")` is data of any kind.

        Returns:
            The content of evaluation.json but for its pictures: `test` or `val` with the means, `own_data`, `classes`,
            `confused`, `mistakes` and others.

        Raises:
            ConfigError: a value of the configuration breaks a rule.
            DataError: the data can't be opened, or has a class that the run was not trained on.
        """
        config = replace(self.config, job="evaluate", data=self._data_of(data))
        check_config(config)
        with self._computing():
            from accumtrain.train.trained.evaluate import describe_evaluation, measure_model
            from accumtrain.train.trained.load import open_measured

            objective, own = open_measured(config)
            opened = objective.data
            with explain_errors(config, opened):
                measured = measure_model(config, self._trained, objective, self._devices)
            result = describe_evaluation(config, measured, opened, self._trained, own=own)
        if bad := [example["name"] for example in result["skipped"]]:
            warn(f"left out: {format_things(len(bad), 'example')} that can't be read: {list_first(bad)}")
        return Evaluation(result)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Have TensorFlow ready, with the kernels of the run, and print warnings only."""
        with silenced(), choose_kernels(self.config, JOBS[self.config.job]):
            environment.prepare(self.config.device)
            yield

    @cached_property
    def _answers(self) -> Any:
        from accumtrain.train.trained.predict import compile_answers

        answer = self._trained.answer
        return compile_answers(
            self._trained, self._devices.strategy, lambda model, batch: answer.answer(model, batch["inputs"])
        )

    def _open(self, inputs: Any) -> tuple[Sequence[Path | str], Dataset]:
        """Return the files or texts that are named, none of an array, and all as a data set."""
        kind = self._noted.inputs
        named = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
        if isinstance(named, list | tuple) and all(isinstance(name, str | os.PathLike) for name in named):
            if not named:
                raise DataError(f"{kind.asked} is an empty list: give at least one file, or an array [N, ...]")
            given = kind.open_named([expand_home(os.fspath(name)) for name in named], self.config.data, kind.asked)
            return given.names, given.data
        try:
            array = np.asarray(inputs)
        except ValueError:  # of a list of images that differ in size
            array = np.empty(0, object)
        return [], kind.open_array(array, self.config.data)

    def _tell_bad(self, data: Dataset, size: int) -> None:
        """Raise DataError if images can't be used, or with data.on_error=skip warn of them."""
        bad = [example.fault for example in data.splits["test"].skipped.values()]
        if not bad:
            return
        told = f"{len(bad)} of {size} images can't be used: {list_first(bad)}"
        if self.config.data.on_error == "raise" or len(bad) == size:
            raise DataError(f"{told}; replace or remove them")
        warn(f"{told}; they are left out")

    def _data_of(self, data: AnyPath | DataConfig | None) -> DataConfig:
        """Return the configuration of data to evaluate on, prepared and divided as the data of the run."""
        own = self.config.data
        if data is None:
            return own
        if not isinstance(data, DataConfig):
            if not hasattr(own, "path"):
                raise ConfigError(
                    f"data={os.fspath(data)}: the run was trained on data={own.kind}, which has no path; give a "
                    "configuration such as accumtrain.FolderConfig(path=...)"
                )
            data = replace(own, path=os.fspath(data))  # type: ignore[call-arg]
        of_run = [Role.SEEN, Role.HELD_OUT] if data.kind == own.kind else [Role.SEEN]
        kept = {key for role in of_run for key in keys_with(role, to_mapping(self.config))}
        names = [key.name for key in fields(data) if f"data.{key.name}" in kept]
        return expand_homes(replace(data, **{name: getattr(own, name) for name in names}))
