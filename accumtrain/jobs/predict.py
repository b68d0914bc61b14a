"""job=predict: the most probable classes of images, by the best state of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.console import say, table, warn
from accumtrain.data.image_files import open_files
from accumtrain.data.named_images import named_images
from accumtrain.devices.resolve import resolve
from accumtrain.engine.predictor import Predicted, predictions
from accumtrain.errors import DataError, Preempted
from accumtrain.jobs.trained import trained_images, trained_model
from accumtrain.planning.auto_steps import with_trained_accum_steps
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.process.interrupt import Interrupt
from accumtrain.progress import counting
from accumtrain.runs.folder import folder_of, result_file
from accumtrain.runs.predictions import Answer, answer_files, write_answers

SHOWN = 20  # images, and bad ones, that are printed; the files have all
NAMED = 3  # ignored files that are named


def run(config: Config) -> dict[str, Any]:
    """Prints the answers for the images that predict.input names, and writes them into files.

    Returns:
        status, step, checkpoint, images (that have an answer), classes (the images of each), files (with the answers),
        bad (the images that can't be used).

    Raises:
        DataError: there are no images; or some can't be used and data.on_error=raise. The others have answers then.
        CheckpointError: there is no trained run, or a file can't be written.
        Preempted: a signal stopped it; the answers so far are written.
    """
    named = named_images(str(config.predict.input))
    config, files = with_trained_accum_steps(config), named.files
    images, fingerprint = trained_images(config)
    devices = resolve(config.device)
    micro_batch = micro_batch_size(config.batch_size, config.accum.count, devices.replicas)
    batch = min(micro_batch, -(-len(files) // devices.replicas)) * devices.replicas
    top = min(config.predict.top, len(images.class_names))
    data = open_files(files, config.data, images)
    in_words = partial(in_user_words, config, data, devices.replicas)
    with in_words(), devices.strategy.scope():
        model, saved = trained_model(config, images, fingerprint)

    answers, done = list[Answer](), 0
    with in_words(), Interrupt() as interrupt:
        with counting("images", len(files)) as report:
            for predicted in predictions(model, data, batch=batch, strategy=devices.strategy, top=top):
                answers += _named(predicted, files, images.class_names)
                more = min(batch, len(files) - done)
                done += more
                report(more)
                if interrupt.requested:
                    break
        written = answer_files(config.predict.output, folder_of(config))
        for file in written:
            write_answers(file, answers, top)
    if named.ignored:
        some = ", ".join(map(str, named.ignored[:NAMED])) + (", ..." if len(named.ignored) > NAMED else "")
        say(f"{len(named.ignored)} in the folder are not named as images and are ignored: {some}")
    for note in data.notes:
        say(note)
    _show(f"{len(answers)} of {len(files)} images by {saved.path}", answers)
    say(f"all of them in {' and '.join(map(str, written))}")

    bad = [{"name": each.name, "reason": each.reason} for each in data.splits["test"].skipped.values()]
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


def _named(predicted: Predicted, files: Sequence[Path], names: Sequence[str]) -> Iterator[Answer]:
    columns = (predicted.labels.tolist(), predicted.classes.tolist(), predicted.probabilities.tolist())
    for place, classes, values in zip(*columns, strict=True):
        yield Answer(str(files[place]), [(names[each], value) for each, value in zip(classes, values, strict=True)])


def _show(title: str, answers: Sequence[Answer]) -> None:
    rows = [
        (
            answer.file,
            answer.top[0][0],
            f"{answer.top[0][1]:.4f}",
            ", ".join(f"{name} {value:.4f}" for name, value in answer.top[1:]),
        )
        for answer in answers[:SHOWN]
    ]
    if rows:
        table(title, ("image", "class", "probability", "or"), rows)
    if len(answers) > SHOWN:
        say(f"... and {len(answers) - SHOWN:,} more")
