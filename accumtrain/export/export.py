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
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.errors import CheckpointError, ConfigError, VerificationError, first_line
from accumtrain.export.config import FORMATS, QUANTIZED
from accumtrain.export.formats import Exported
from accumtrain.process.logs import held_back_stderr
from accumtrain.registry import load
from accumtrain.runs.files import replacing
from accumtrain.runs.folder import state_mark
from accumtrain.runs.names import folder_of, make_results_folder
from accumtrain.train.tell.remedies import explain_errors
from accumtrain.train.trained.load import build_trained, find_trained_on, trained_model

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
    noted, fingerprint = find_trained_on(config)
    noted.inputs.check_one()
    config = replace(config, model=replace(config.model, memory="store"))  # an inference keeps nothing
    with explain_errors(config, data=None):
        trained = trained_model(config, noted, fingerprint, config.state)
        model, saved = _in_float32(config, noted, trained.model), trained.saved
    quantize = config.export.quantize
    answer = trained.answer
    exported = Exported(config.model.label, model, noted.inputs, answer, quantize)
    path, chosen, bound = _find_path(config), FORMATS[config.export.format], QUANTIZED[quantize]
    with _replacing_export(path) as unfinished:
        with held_back_stderr():
            load(chosen.write)(exported, unfinished)
        size = sum(file.stat().st_size for file in [unfinished, *unfinished.rglob("*")] if file.is_file())
        say(f"written, {format_bytes(size)}; now {chosen.reads}")
        difference = load(chosen.compare)(exported, unfinished)
        if not difference <= bound:
            given = f"export.format={chosen.name}" if quantize == "none" else f"export.quantize={quantize}"
            remedy = "choose another format" if quantize == "none" else "leave export.quantize out"
            raise VerificationError(
                f"{given}: {answer.name} differ by {difference:.1e}{answer.unit_name} from those of the run, more than "
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
        "class_names": answer.columns,
        **answer.texts(),
        "largest_difference": difference,
    }
    _show(config, exported, result)
    return result


def _show(config: Config, exported: Exported, result: dict[str, Any]) -> None:
    names, taken, answer = result["class_names"], result["input"], exported.answer
    sizes = ", ".join(answer.sizes)
    more, difference = len(names) - SHOWN_NAMES, f"{result['largest_difference']:.1e}{answer.unit_name}"
    shown = ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
    rows = [
        ("model", f"{config.model.label}, {result['checkpoint'].rpartition('/')[0]}"),
        ("input", _name_input(taken)),
        ("output", f"float32 [{'images' if 'resized_to' in taken else 'N'}, {sizes}], {answer.name} of {shown}"),
        *([] if result["quantize"] == "none" else [("weights", WEIGHTS[result["quantize"]])]),
        ("difference", f"{difference} at most from accumtrain's own, {FORMATS[result['format']].reads}"),
        ("file", f"{result['file']}, {format_bytes(result['bytes'])}"),
    ]
    banner(f"exported as {result['format']}", rows)


def _describe_input(exported: Exported) -> dict[str, Any]:
    spec, size = exported.inputs.signature, exported.inputs.resized_to
    resized = {} if size is None else {"resized_to": size}
    return {"dtype": spec.dtype.name, "shape": spec.shape.as_list(), **resized}


def _name_input(taken: dict[str, Any]) -> str:
    *_, channels = taken["shape"]
    if "resized_to" not in taken:
        return f"{taken['dtype']} [N, {', '.join(map(str, taken['shape'][1:]))}]"
    height, width = taken["resized_to"]
    return f"uint8 [images, height, width, {channels}], pixels 0..255, any size; resized to {height} x {width}"


def _in_float32(config: Config, noted: TrainedOn, model: Model) -> Model:
    """Return the model with its weights in float32."""
    if config.precision == FLOAT32:
        return model
    say(f"precision={config.precision}: the export computes in {FLOAT32}")
    copy = build_trained(config, noted, FLOAT32)
    for new, old in zip(copy.variables, model.variables, strict=True):
        new.assign(tf.cast(old, new.dtype))
    return copy


def _find_path(config: Config) -> Path:
    """Return the path of the export. Raise ConfigError if something else is there."""
    folder, chosen = folder_of(config), FORMATS[config.export.format]
    suffix = chosen.suffix
    weights = "" if config.export.quantize == "none" else f"_{config.export.quantize}"
    own = folder / f"{folder.name if suffix else chosen.name}{state_mark(config)}{weights}{suffix}"
    path = own if config.export.output is None else Path(config.export.output)
    replaces = path.is_file() if suffix else (path / chosen.mark).is_file()
    if os.path.lexists(path) and not replaces:
        raise ConfigError(
            f"export.output={path}: exists and is no {chosen.name} export; move it away, or name another place"
        )
    return path


@contextmanager
def _replacing_export(path: Path) -> Iterator[Path]:
    """Replace the file or folder as a whole. Errors of TensorFlow become a CheckpointError."""
    make_results_folder(path.parent)
    try:
        with replacing(path) as unfinished:
            yield unfinished
    except tf.errors.OpError as error:
        full = "No space left on device" in error.message
        reason = "no space left on the device" if full else first_line(error)
        raise CheckpointError(f"{path} can't be written: {reason}; fix that and run the same command again") from error
