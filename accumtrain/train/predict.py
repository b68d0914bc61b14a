"""job=predict: the most probable classes of images by the best state of a run, on the screen and in files."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION
from accumtrain.backprop.model import Model
from accumtrain.config.rules import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.local_files import CSV, JSONL, list_first, list_named_images
from accumtrain.data.pipeline import distribute_batches, make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.data.sources.folder import open_files
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import Batch, example_weights
from accumtrain.errors import DataError, Preempted
from accumtrain.process.signals import DeferredSignals
from accumtrain.progress import counting
from accumtrain.runs.files import write_atomic
from accumtrain.runs.folder import result_file, state_mark
from accumtrain.runs.names import folder_of, make_folder
from accumtrain.train.remedies import explain_errors
from accumtrain.train.weights import trained_images, trained_model

NAME = "predictions"  # of the files
SHOWN = 20  # images, and bad ones, that are printed; the files have all
NAMED = 3  # ignored files that are named


def probabilities(model: Model, images: tf.Tensor) -> tf.Tensor:
    """Return the probabilities, float32 [N, classes], of prepared images [N, H, W, C]: the softmax of the logits."""
    return tf.cast(tf.nn.softmax(model(images, EVALUATION)), tf.float32)


AnswerFunction = Callable[[Batch], tuple[tf.Tensor, ...]]  # of a batch of each replica


def compile_answers(model: Model, strategy: tf.distribute.Strategy, top: int) -> AnswerFunction:
    """Return a compiled function from a batch to the labels, weights and most probable classes of its examples.

    Args:
        top: how many classes, at most all.
    """

    def answer(examples: Batch) -> tuple[tf.Tensor, ...]:
        values, classes = tf.math.top_k(probabilities(model, examples["image"]), top)
        return examples["label"], example_weights(examples), classes, values

    @tf.function(autograph=False)
    def answers(examples: Batch) -> tuple[tf.Tensor, ...]:
        parts = [strategy.experimental_local_results(part) for part in strategy.run(answer, args=(examples,))]
        return tuple(tf.concat(part, 0) for part in parts)

    return answers


def predictions(
    answers: AnswerFunction, data: Dataset, *, batch: int, strategy: tf.distribute.Strategy
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the answers for the test images of `data` in their order, as an evaluation reads them.

    An answer is the labels, int32 [n], and of each image the k most probable classes, int32 [n, k], with their
    probabilities, float32 [n, k], falling. Examples that are left out (data.on_error=skip) have none.

    Args:
        answers: made by `compile_answers`.
        batch: examples per batch over all replicas.
    """
    batches = iter(distribute_batches(strategy, lambda shard: make_eval_batches(data, batch=batch, shard=shard)))
    for _ in range(-(-data.splits["test"].size // batch)):
        labels, weight, classes, values = (tensor.numpy() for tensor in answers(next(batches)))
        used = weight > 0
        yield labels[used], classes[used], values[used]


def prediction_batch(config: Config, images: int, replicas: int) -> int:
    """Return how many of so many images are taken at once: as many as in an evaluation, or all of fewer."""
    return min(micro_batch_size(config.batch_size, config.accum.count, replicas), -(-images // replicas)) * replicas


# ---- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The most probable classes of an image, each with its probability, falling."""

    file: str
    top: list[tuple[str, float]]


def answer_files(output: str | None, folder: Path, mark: str) -> list[Path]:
    """Return the files that predict.output names; `folder` is where they go if it is None.

    Args:
        mark: ends the names that predict.output leaves open.
    """
    place = folder if output is None else Path(output)
    return [place] if place.suffix in (CSV, JSONL) else [place / f"{NAME}{mark}{suffix}" for suffix in (CSV, JSONL)]


def _csv(answers: Sequence[Answer], top: int) -> str:
    """Return the columns file, class, probability, class_2, probability_2, ..."""
    places = ["", *(f"_{place}" for place in range(2, top + 1))]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["file", *(f"{name}{place}" for place in places for name in ("class", "probability"))])
    rows.writerows(
        [answer.file, *(cell for name, value in answer.top for cell in (name, _rounded(value)))] for answer in answers
    )
    return text.getvalue()


def _jsonl(answers: Sequence[Answer]) -> str:
    """Return lines {"file": ..., "class": ..., "probability": ..., "top": [{"class": ..., "probability": ...}, ...]}"""
    tops = [[{"class": name, "probability": _rounded(value)} for name, value in answer.top] for answer in answers]
    objects = ({"file": answer.file, **top[0], "top": top} for answer, top in zip(answers, tops, strict=True))
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in objects)


def _rounded(probability: float) -> float:
    """Return it with the digits that a float32 has."""
    return float(f"{probability:.9g}")


# ---- the job ---------------------------------------------------------------------------------------------------------


def predict_images(config: Config) -> dict[str, Any]:
    """Print the answers for the images that predict.input names, and write them into files.

    Returns:
        status, step, checkpoint, images (that have an answer), classes (the images of each), files (with the answers),
        bad (the images that can't be used).

    Raises:
        DataError: there are no images; or some can't be used and data.on_error=raise. The others have answers then.
        CheckpointError: there is no trained run, or a file can't be written.
        Preempted: a signal stopped it; the answers so far are written.
    """
    files, ignored = list_named_images(str(config.predict.input))
    images, fingerprint = trained_images(config)
    devices = resolve_devices(config.device)
    batch = prediction_batch(config, len(files), devices.replicas)
    top = min(config.predict.top, len(images.class_names))
    data = open_files(files, config.data, images)
    in_words = partial(explain_errors, config, data, devices.replicas)
    with in_words(), devices.strategy.scope():
        model, saved, _ = trained_model(config, images, fingerprint, config.state)

    answers, done = list[Answer](), 0
    with in_words(), DeferredSignals() as interrupt:
        with counting("images", len(files)) as report:
            function = compile_answers(model, devices.strategy, top)
            for predicted in predictions(function, data, batch=batch, strategy=devices.strategy):
                for place, classes, values in zip(*(part.tolist() for part in predicted), strict=True):
                    names = [images.class_names[number] for number in classes]
                    answers.append(Answer(str(files[place]), list(zip(names, values, strict=True))))
                more = min(batch, len(files) - done)
                done += more
                report(more)
                if interrupt.requested:
                    break
        written = answer_files(config.predict.output, folder_of(config), state_mark(config))
        for file in written:
            make_folder(file.parent)
            write_atomic(file, _csv(answers, top) if file.suffix == CSV else _jsonl(answers))
    if ignored:
        some = list_first(ignored, NAMED)
        say(f"{len(ignored)} in the folder are not named as images and are ignored: {some}")
    for note in data.notes:
        say(note)
    _show(f"{len(answers)} of {len(files)} images by {saved.path}", answers)
    say(f"all of them in {' and '.join(map(str, written))}")

    bad = [{"name": example.name, "reason": example.reason} for example in data.splits["test"].skipped.values()]
    result = {
        "status": "completed" if done == len(files) else "preempted",
        "step": saved.step,
        "checkpoint": saved.prefix,
        "images": len(answers),
        "classes": dict(Counter(answer.top[0][0] for answer in answers).most_common()),
        "files": list(map(str, written)),
        "bad": {"count": len(bad), "examples": bad},
    }
    for each in bad[:SHOWN]:
        warn(f"{each['name']} {each['reason']}")
    if done < len(files):
        raise Preempted(f"stopped after {done} of {len(files)} images; run the same command again for all", result)
    if bad:
        told = f"{len(bad)} of {len(files)} images can't be used, {result_file(config)} names them"
        if config.data.on_error == "raise":
            raise DataError(f"{told}: replace or remove them, or set data.on_error=skip to go on without them", result)
        warn(f"{told}; they are left out")
    return result


def _show(title: str, answers: Sequence[Answer]) -> None:
    rows = []
    for answer in answers[:SHOWN]:
        (name, value), *others = answer.top
        rows.append((answer.file, name, f"{value:.4f}", ", ".join(f"{name} {value:.4f}" for name, value in others)))
    if rows:
        table(title, ("image", "class", "probability", "or"), rows)
    if len(answers) > SHOWN:
        say(f"... and {len(answers) - SHOWN:,} more")
