"""job=predict: the answers for images by the best state of a run, on the screen and in files."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import escape_controls, say, table, warn
from accumtrain.data.local_files import CSV, JSONL, list_first
from accumtrain.data.pipeline import DistributedBatches, make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import Batch, example_weights
from accumtrain.errors import DataError, Preempted
from accumtrain.process.signals import DeferredSignals
from accumtrain.progress import counting
from accumtrain.runs.files import write_atomic
from accumtrain.runs.folder import result_file, state_mark
from accumtrain.runs.names import folder_of, make_results_folder
from accumtrain.tasks.answer import AnswersInWords
from accumtrain.train.tell.remedies import explain_errors
from accumtrain.train.trained.load import Trained, find_trained_on, trained_model

NAME = "predictions"  # of the files
SHOWN = 20  # images, and bad ones, that are printed; the files have all
NAMED = 3  # ignored files that are named
COMPUTED = ("=", "+", "-", "@", "\t", "\r")  # the beginnings of texts that a spreadsheet takes as formulas


AnswerFunction = Callable[[Batch], tuple[tf.Tensor, ...]]  # of a batch of each replica


def compile_answers(
    trained: Trained, strategy: tf.distribute.Strategy, function: Callable[[Model, Batch], tf.Tensor]
) -> AnswerFunction:
    """Return a compiled function from a batch to the labels, weights and answers of its examples.

    Args:
        function: from the model and a batch to the answers.
    """

    def answer(examples: Batch) -> tuple[tf.Tensor, ...]:
        found = function(trained.model, examples)
        return examples["targets"], example_weights(examples), found

    @tf.function(autograph=False)
    def answers(examples: Batch) -> tuple[tf.Tensor, ...]:
        parts = [strategy.experimental_local_results(part) for part in strategy.run(answer, args=(examples,))]
        return tuple(tf.concat(part, 0) for part in parts)

    return answers


def predictions(
    answers: AnswerFunction, data: Dataset, *, batch: int, strategy: tf.distribute.Strategy
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield labels, int32 [n], and answers, float32 [n, K], for the test images of `data` in their order.

    Examples that are left out (data.on_error=skip) have none.

    Args:
        answers: made by `compile_answers`.
        batch: examples per batch over all replicas.
    """
    batches = iter(DistributedBatches(strategy, lambda shard: make_eval_batches(data, batch=batch, shard=shard)))
    for _ in range(-(-data.splits["test"].size // batch)):
        labels, weight, values = (tensor.numpy() for tensor in answers(next(batches)))
        used = weight > 0
        yield labels[used], values[used]


def prediction_batch(config: Config, images: int, replicas: int) -> int:
    """Return how many of so many images are taken at once: as many as in an evaluation, or all of fewer."""
    return min(micro_batch_size(config.batch_size, config.accum.count, replicas), -(-images // replicas)) * replicas


# ---- files -----------------------------------------------------------------------------------------------------------


def answer_files(output: str | None, folder: Path, mark: str) -> list[Path]:
    """Return the files that predict.output names; `folder` is where they go if it is None.

    Args:
        mark: ends the names that predict.output leaves open.
    """
    place = folder if output is None else Path(output)
    return [place] if place.suffix in (CSV, JSONL) else [place / f"{NAME}{mark}{suffix}" for suffix in (CSV, JSONL)]


def place_outputs(names: Sequence[str], folder: Path) -> list[Path]:
    """Return a PNG file in a folder for each input, beneath the folders in which the inputs differ."""
    top = os.path.commonpath([Path(name).parent for name in names])
    inner = [PurePath(os.path.relpath(name, top)) for name in names]
    if len({path.with_suffix("") for path in inner}) == len(inner):
        inner = [path.with_suffix("") for path in inner]
    return [folder / f"{path}.png" for path in inner]


def _csv(files: Sequence[str], answers: AnswersInWords, copied: Sequence[Mapping[str, Any]] = (), *, raw: bool) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    others = list(dict.fromkeys(name for row in copied for name in row))
    cells = [[_as_cell(row.get(name)) for name in others] for row in copied] or [[] for _ in files]
    answered = zip(files, answers.rows, cells, strict=True)
    rows = [["file", *answers.columns, *others], *([file, *row, *more] for file, row, more in answered)]
    lines.writerows(rows if raw else [map(as_harmless_cell, row) for row in rows])
    return text.getvalue()


def _as_cell(value: Any) -> Any:
    """Return a cell of a CSV file. A list is written as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def as_harmless_cell(value: object) -> object:
    """Return a cell that a spreadsheet shows: a text that it would compute gets a quote, and controls are escapes."""
    if not isinstance(value, str):
        return value
    return ("'" if value.startswith(COMPUTED) and not _is_number(value) else "") + escape_controls(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _jsonl(files: Sequence[str], answers: AnswersInWords, copied: Sequence[Mapping[str, Any]]) -> str:
    answered = zip(files, answers.records, copied or [{}] * len(files), strict=True)
    objects = ({"file": file, **record, **others} for file, record, others in answered)
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in objects)


def copy_others(others: Sequence[Mapping[str, Any]], answers: AnswersInWords) -> list[dict[str, Any]]:
    """Return the other cells of rows under names that no answer has: given_ is put before those that one has."""
    taken = {"file", *answers.columns, *(key for record in answers.records for key in record)}
    names = dict[str, str]()
    for name in dict.fromkeys(name for row in others for name in row):
        names[name] = name
        while names[name] in taken:
            names[name] = f"given_{names[name]}"
        taken.add(names[name])
    return [{names[name]: value for name, value in row.items()} for row in others]


# ---- the job ---------------------------------------------------------------------------------------------------------


def predict(config: Config) -> dict[str, Any]:
    """Print the answers for the images that predict.input names, and write them into files.

    Returns:
        status, step, checkpoint.
        images: the number of those that have an answer.
        files: with the answers, and the other columns of a table.
        bad: the number of images that can't be used, and the name and reason of each.
        The summary of the task, such as classes: the images of each.

    Raises:
        DataError: there are no images; or some can't be used and data.on_error=raise. The others have answers then.
        CheckpointError: there is no trained run, or a file can't be written.
        Preempted: a signal stopped it; the answers so far are written.
    """
    devices = resolve_devices(config.device)  # first, as the data makes tensors
    noted, fingerprint = find_trained_on(config)
    named = [str(config.predict.input)]
    given = noted.inputs.open_named(named, config.data, "predict.input")
    names, data = given.names, given.data
    split = data.splits["test"]
    batch = prediction_batch(config, split.size, devices.replicas)
    kind = noted.inputs.asked
    in_words = partial(explain_errors, config, data, devices.replicas)
    with in_words(), devices.strategy.scope():
        trained = trained_model(config, noted, fingerprint, config.state)

    written = answer_files(config.predict.output, folder_of(config), state_mark(config))
    writes = trained.answer.writes
    folder = None if writes is None else written[0].parent / f"{writes}{state_mark(config)}"
    places = [] if folder is None else place_outputs(names, folder)
    answered, values, done = list[int](), list[np.ndarray](), 0
    with in_words(), DeferredSignals() as interrupt:
        with counting(kind, split.size) as report:

            def until_interrupted() -> Iterator[tuple[np.ndarray, np.ndarray]]:
                nonlocal done
                function = compile_answers(trained, devices.strategy, trained.answer.predict)
                for found in predictions(function, data, batch=batch, strategy=devices.strategy):
                    yield found
                    more = min(batch, split.size - done)
                    done += more
                    report(more)
                    if interrupt.requested:
                        return

            for indices, found in data.inputs.join(split, until_interrupted()):
                answered += map(int, indices)
                values.append(trained.answer.keep(found, [places[index] for index in indices] if places else []))
        answers, files = trained.answer.tell(np.concatenate(values)), [names[index] for index in answered]
        copied = copy_others([given.others[index] for index in answered] if given.others else [], answers)
        for file in written:
            make_results_folder(file.parent)
            is_csv, raw = file.suffix == CSV, config.predict.raw
            write_atomic(file, _csv(files, answers, copied, raw=raw) if is_csv else _jsonl(files, answers, copied))
    if given.ignored:
        some = list_first(given.ignored, NAMED)
        say(f"{len(given.ignored)} in the folder are not named as images and are ignored: {some}")
    for note in data.notes:
        say(note)
    starts = data.inputs.beginnings(data.splits["test"], answered[:SHOWN])
    _show(
        f"{len(files)} of {len(names)} {kind} by {trained.saved.path}", kind.removesuffix("s"), files, starts, answers
    )
    say(f"all of them in {' and '.join(map(str, written if folder is None else [folder, *written]))}")

    bad = [{"name": example.name, "reason": example.reason} for example in data.splits["test"].skipped.values()]
    result = {
        "status": "completed" if done == split.size else "preempted",
        "step": trained.saved.step,
        "checkpoint": trained.saved.prefix,
        "examples": len(files),
        **answers.summary,
        "files": list(map(str, written if folder is None else [folder, *written])),
        "bad": {"count": len(bad), "examples": bad},
    }
    for each in bad[:SHOWN]:
        warn(f"{each['name']} {each['reason']}")
    if done < split.size:
        stopped = f"stopped after {len(files)} of {len(names)} {kind}"
        raise Preempted(f"{stopped}; run the same command again for all", result)
    if bad:
        told = f"{len(bad)} of {len(names)} {kind} can't be used, {result_file(config)} names them"
        if config.data.on_error == "raise":
            raise DataError(f"{told}: replace or remove them, or set data.on_error=skip to go on without them", result)
        warn(f"{told}; they are left out")
    return result


def _show(title: str, named: str, files: Sequence[str], starts: Sequence[str], answers: AnswersInWords) -> None:
    """Print a table of the first answers, with `starts` beside the names if there are any."""
    rows = [(file, *cells) for file, cells in zip(files[:SHOWN], answers.shown, strict=False)]
    if starts:
        rows = [(file, start, *cells) for (file, *cells), start in zip(rows, starts, strict=True)]
    if rows:
        table(title, (named, *(["begins"] if starts else []), *answers.titles), rows)
    if len(files) > SHOWN:
        say(f"... and {len(files) - SHOWN:,} more")
