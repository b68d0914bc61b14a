"""job=export: the best state of a run as a file that computes without accumtrain."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.console import banner, escape_lines, format_bytes, say
from accumtrain.data.sources.folder import preprocess_any_size
from accumtrain.data.text.vocabulary import PADDING
from accumtrain.errors import CheckpointError, ConfigError, VerificationError, first_line
from accumtrain.export.config import FORMATS, QUANTIZED
from accumtrain.export.formats import Exported
from accumtrain.process.logs import held_back_stderr
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.registry import load
from accumtrain.runs.files import replacing
from accumtrain.runs.folder import state_mark
from accumtrain.runs.names import folder_of, make_folder
from accumtrain.runs.run import Images
from accumtrain.tasks.task import build_task, check_one_input
from accumtrain.train.tell.remedies import explain_errors
from accumtrain.train.weights import build_trained, trained_images, trained_model

SHOWN_NAMES = 10  # of classes, in the summary
FLOAT32 = "float32"  # the precision of all formats
WEIGHTS = {"float16": "float16", "int8": "int8; those of fewer than 1,024 numbers float32"}  # in the summary


def export_run(config: Config) -> dict[str, Any]:
    """Write the export, load it in a process without accumtrain, and compare their answers.

    Returns:
        status, step, checkpoint, format, quantize, file, bytes, class_names, input (shape and dtype) and
        largest_difference.

    Raises:
        ConfigError: the format can't hold this model, it takes several arrays, or the place for the file is taken.
        CheckpointError: there is no trained run, or the file can't be written.
        VerificationError: the file gives other answers than the run. It is removed.
    """
    images, fingerprint = trained_images(config)
    check_one_input(images)
    config = replace(config, model=replace(config.model, memory="store"))  # an inference keeps nothing
    with explain_errors(config, data=None):
        trained = trained_model(config, images, fingerprint, config.state)
        model, saved = _in_float32(config, images, trained.model), trained.saved
    preprocess = None if images.plain else preprocess_any_size(config.data, images)
    quantize = config.export.quantize
    task = build_task(config)
    names = task.answer_names(images.class_names)
    exported = Exported(
        config.model.label, model, preprocess, images.shape, names, task, trained.facts, quantize, images.vocabulary
    )
    path, chosen, bound = _find_path(config), FORMATS[config.export.format], QUANTIZED[quantize]
    with _replacing_export(path) as unfinished:
        with held_back_stderr():
            load(chosen.write)(exported, unfinished)
        size = sum(file.stat().st_size for file in [unfinished, *unfinished.rglob("*")] if file.is_file())
        say(f"written, {format_bytes(size)}; now loaded in a process without accumtrain")
        difference = largest_difference(exported, unfinished)
        if not difference <= bound:
            given = f"export.format={chosen.name}" if quantize == "none" else f"export.quantize={quantize}"
            remedy = "choose another format" if quantize == "none" else "leave export.quantize out"
            raise VerificationError(
                f"{given}: {task.output} differ by {difference:.1e}{task.unit} from those of the run, more than "
                f"{bound:g}; nothing is kept: {remedy}"
            )
    result = {
        "status": "completed",
        "step": saved.step,
        "checkpoint": saved.prefix,
        "format": chosen.name,
        "quantize": quantize,
        "file": str(path),
        "bytes": size,
        "input": _describe_input(exported),
        "class_names": names,
        **exported.answer_facts,
        "largest_difference": difference,
    }
    _show(config, exported, result)
    return result


def _show(config: Config, exported: Exported, result: dict[str, Any]) -> None:
    names, taken, task = result["class_names"], result["input"], exported.task
    sizes = ", ".join(map(str, task.answer_shape(names, exported.facts)))
    more, difference = len(names) - SHOWN_NAMES, f"{result['largest_difference']:.1e}{task.unit}"
    shown = ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
    rows = [
        ("model", f"{config.model.label}, {result['checkpoint'].rpartition('/')[0]}"),
        ("input", _name_input(taken)),
        ("output", f"float32 [{'images' if 'resized_to' in taken else 'N'}, {sizes}], {task.output} of {shown}"),
        *([] if result["quantize"] == "none" else [("weights", WEIGHTS[result["quantize"]])]),
        ("difference", f"{difference} at most from accumtrain's own, when loaded without it"),
        ("file", f"{result['file']}, {format_bytes(result['bytes'])}"),
    ]
    banner(f"exported as {result['format']}", rows)


def _describe_input(exported: Exported) -> dict[str, Any]:
    spec = exported.signature
    resized = {} if exported.preprocess is None else {"resized_to": exported.shape[:2]}
    return {"dtype": spec.dtype.name, "shape": spec.shape.as_list(), **resized}


def _name_input(taken: dict[str, Any]) -> str:
    *_, channels = taken["shape"]
    if "resized_to" not in taken:
        return f"{taken['dtype']} [N, {', '.join(map(str, taken['shape'][1:]))}]"
    height, width = taken["resized_to"]
    return f"uint8 [images, height, width, {channels}], pixels 0..255, any size; resized to {height} x {width}"


def _in_float32(config: Config, images: Images, model: Model) -> Model:
    """Return the model with its weights in float32."""
    if config.precision == FLOAT32:
        return model
    say(f"precision={config.precision}: the export computes in {FLOAT32}")
    copy = build_trained(config, images, FLOAT32)
    for new, old in zip(copy.variables, model.variables, strict=True):
        new.assign(tf.cast(old, new.dtype))
    return copy


def _find_path(config: Config) -> Path:
    """Return the path of the export. Raise ConfigError if something else is there."""
    folder, suffix = folder_of(config), FORMATS[config.export.format].suffix
    weights = "" if config.export.quantize == "none" else f"_{config.export.quantize}"
    own = folder / f"{folder.name if suffix else 'savedmodel'}{state_mark(config)}{weights}{suffix}"
    path = own if config.export.output is None else Path(config.export.output)
    replaces = path.is_file() if suffix else (path / "saved_model.pb").is_file()
    if os.path.lexists(path) and not replaces:
        kind = config.export.format
        raise ConfigError(f"export.output={path}: exists and is no {kind} export; move it away, or name another place")
    return path


@contextmanager
def _replacing_export(path: Path) -> Iterator[Path]:
    """Replace the file or folder as a whole. Errors of TensorFlow become a CheckpointError."""
    make_folder(path.parent)
    try:
        with replacing(path) as unfinished:
            yield unfinished
    except tf.errors.OpError as error:
        full = "No space left on device" in error.message
        reason = "no space left on the device" if full else first_line(error)
        raise CheckpointError(f"{path} can't be written: {reason}; fix that and run the same command again") from error


# ---- the comparison with the file, as a process without accumtrain loads it ----


PROGRAM = Path(__file__).with_name("reload.py")
NUMBER = 4  # images of each size
SIZES = ((1.0, 1.0), (1.7, 2.3), (0.5, 0.6))  # in shares of the model's
MASKED = 0.2  # share of masks among tokens
COARSE, NOISE = 4, 30  # the images are a grid of so many patches a side, under noise


def largest_difference(exported: Exported, path: Path) -> float:
    """Return the largest difference of an answer between the file and the run, over images of several sizes.

    Raises:
        VerificationError: another process can't load the file, or not as it was written.
    """
    images = {f"size_{place}": make_inputs(exported, size) for place, size in enumerate(SIZES)}
    with temporary_folder("export") as folder:
        inputs, outputs = folder / "inputs.npz", folder / "outputs.npz"
        np.savez(inputs, allow_pickle=False, **images)
        command = [sys.executable, str(PROGRAM), str(path.absolute()), str(inputs), str(outputs)]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",  # this process holds the memory of GPUs
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(escape_lines(done.stderr[-2000:]))
            raise VerificationError("a clean process could not use what was written; the lines above are what it said")
        with np.load(outputs) as answers:
            if answers["class_names"].tolist() != exported.class_names:
                raise VerificationError("the class names in what was written are not those of the run")
            unit = exported.task.measure_unit(exported.facts)
            differences = [
                np.abs((answers[name] - _predict(exported, batch)) / unit).max() for name, batch in images.items()
            ]
            return float(np.max(differences))  # NaN if one is: Python's max may drop it


def _predict(exported: Exported, images: np.ndarray) -> np.ndarray:
    """Return the run's answers, float32 [N, K], to uint8 images [N, H, W, C], as in an evaluation."""
    key, prepare, channels = tf.zeros([], tf.uint64), exported.preprocess, images.shape[-1]
    if prepare is None:
        batch = exported.task.take(tf.constant(images), exported.facts)
    else:
        examples = [prepare.example(tf.constant(image), key, channels=channels, training=False) for image in images]
        batch = prepare.batch(tf.stack(examples), tf.fill([len(images)], key), training=False)
    answers: np.ndarray = exported.answer(batch).numpy()
    return answers


def make_inputs(exported: Exported, size: tuple[float, float]) -> np.ndarray:
    """Return inputs, [N, ...], that are the same in every call; `size` of images is in shares of the model's."""
    random = np.random.default_rng(0)
    if exported.vocabulary:
        tokens = random.integers(0, exported.vocabulary["size"], [NUMBER, *exported.shape], np.int32)
        tokens[random.random(tokens.shape) < MASKED] = exported.vocabulary["mask"]
        ends = np.linspace(1, exported.shape[0], NUMBER, dtype=np.int32)
        return np.where(np.arange(exported.shape[0]) < ends[:, np.newaxis], tokens, np.int32(PADDING))
    if exported.preprocess is None:
        return random.standard_normal([NUMBER, *exported.shape], np.float32)
    return make_images(exported.shape, size)


def make_images(shape: tuple[int, ...], size: tuple[float, float]) -> np.ndarray:
    """Return images, uint8 [N, height, width, channels], that are the same in every call."""
    random = np.random.default_rng(0)
    height, width = (max(1, round(side * share)) for side, share in zip(shape, size, strict=False))
    patches = random.integers(0, 256, [NUMBER, COARSE, COARSE, shape[-1]])
    rows, columns = (np.arange(side) * COARSE // side for side in (height, width))
    noise = random.integers(-NOISE, NOISE + 1, [NUMBER, height, width, shape[-1]])
    return np.clip(patches[:, rows][:, :, columns] + noise, 0, 255).astype(np.uint8)
