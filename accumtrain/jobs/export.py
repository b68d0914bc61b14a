"""job=export: the best state of a run as a file that computes without accumtrain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.console import banner, format_bytes, say
from accumtrain.data.image_files import preprocess_any_size
from accumtrain.errors import CheckpointError, ConfigError, VerificationError, first_line
from accumtrain.exports.formats import Exported
from accumtrain.exports.round_trip import largest_difference
from accumtrain.jobs.trained import trained_images, trained_model
from accumtrain.kinds.exports import FORMATS
from accumtrain.kinds.table import load
from accumtrain.models.build_model import build_model
from accumtrain.models.spec import ModelSpec
from accumtrain.planning.tensorflow_errors import in_user_words
from accumtrain.process.environment import held_back_stderr
from accumtrain.runs.files import replacing
from accumtrain.runs.folder import folder_of, make_folder
from accumtrain.runs.trained_on import Images

BOUND = 1e-3  # of the difference between probabilities
SHOWN = 10  # class names that are printed
FLOAT32 = "float32"  # what exports compute in


def run(config: Config) -> dict[str, Any]:
    """Writes the export, loads it in a process without accumtrain, and compares their probabilities.

    Returns:
        status, step, checkpoint, format, file, bytes, class_names, input (shape and dtype), largest_difference.

    Raises:
        ConfigError: the format can't hold this model, or the place for the file is taken.
        CheckpointError: there is no trained run, or the file can't be written.
        VerificationError: the file does not compute what the run does; it is removed.
    """
    images, fingerprint = trained_images(config)
    config = replace(config, model=replace(config.model, memory="store"))  # an inference keeps nothing
    with in_user_words(config, data=None):
        model, saved = trained_model(config, images, fingerprint)
        model = _in_float32(config, images, model)
    preprocess = preprocess_any_size(config.data, images)
    exported = Exported(config.model.label, model, preprocess, images.shape, images.class_names)
    path, row = _path(config), FORMATS[config.export.format]
    with _replacing_export(path) as unfinished:
        with held_back_stderr():
            load(row.write)(exported, unfinished)
        size = _bytes(unfinished)
        say(f"written, {format_bytes(size)}; now loaded in a process without accumtrain")
        difference = largest_difference(exported, unfinished)
        if not difference <= BOUND:
            raise VerificationError(
                f"export.format={row.name}: probabilities differ by {difference:.1e} from those of the run, more "
                f"than {BOUND:g}; nothing is kept: choose another format"
            )
    result = {
        "status": "completed",
        "step": saved.step,
        "checkpoint": saved.prefix,
        "format": row.name,
        "file": str(path),
        "bytes": size,
        "input": {"dtype": "uint8", "shape": [None, None, None, images.shape[-1]], "resized_to": images.shape[:2]},
        "class_names": images.class_names,
        "largest_difference": difference,
    }
    _show(config, result)
    return result


def _show(config: Config, result: dict[str, Any]) -> None:
    names, (*_, channels) = result["class_names"], result["input"]["shape"]
    height, width = result["input"]["resized_to"]
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    rows = [
        ("model", f"{config.model.label}, {result['checkpoint'].rpartition('/')[0]}"),
        ("input", f"uint8 [images, height, width, {channels}], pixels 0..255, any size; resized to {height} x {width}"),
        ("output", f"float32 [images, {len(names)}], probabilities of {shown}"),
        ("difference", f"{result['largest_difference']:.1e} at most from accumtrain's own, when loaded without it"),
        ("file", f"{result['file']}, {format_bytes(result['bytes'])}"),
    ]
    banner(f"exported as {result['format']}", rows)


def _in_float32(config: Config, images: Images, model: Model) -> Model:
    """The model with its weights in float32, which all formats compute in."""
    if config.precision == FLOAT32:
        return model
    say(f"precision={config.precision}: the export computes in {FLOAT32}")
    spec = ModelSpec(images.shape, len(images.class_names), FLOAT32, config.run.seed, draws=False)
    copy = build_model(config.model, spec)
    for new, old in zip(copy.variables, model.variables, strict=True):
        new.assign(tf.cast(old, new.dtype))
    return copy


def _path(config: Config) -> Path:
    """Where the export goes. Raises ConfigError if something else is there."""
    folder, suffix = folder_of(config), FORMATS[config.export.format].suffix
    own = folder / (f"{folder.name}{suffix}" if suffix else "savedmodel")
    path = own if config.export.output is None else Path(config.export.output)
    replaces = path.is_file() if suffix else (path / "saved_model.pb").is_file()
    if os.path.lexists(path) and not replaces:
        kind = config.export.format
        raise ConfigError(f"export.output={path}: is there and no {kind}; move it away, or name another place")
    return path


@contextmanager
def _replacing_export(path: Path) -> Iterator[Path]:
    """As `replacing`, for what TensorFlow writes."""
    make_folder(path.parent)
    try:
        with replacing(path) as unfinished:
            yield unfinished
    except tf.errors.OpError as error:
        full = "No space left on device" in error.message
        reason = "no space left on the device" if full else first_line(error)
        raise CheckpointError(f"{path} can't be written: {reason}; mend that and run the same command again") from error


def _bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())
