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
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.errors import CheckpointError, ConfigError, VerificationError, first_line
from accumtrain.export.config import FORMATS, QUANTIZED
from accumtrain.export.formats import Exported
from accumtrain.process.logs import held_back_stderr
from accumtrain.process.temporary_folder import temporary_folder
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
        say(f"written, {format_bytes(size)}; now loaded in a process without accumtrain")
        difference = largest_difference(exported, unfinished)
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
    sizes = ", ".join(map(str, answer.shape))
    more, difference = len(names) - SHOWN_NAMES, f"{result['largest_difference']:.1e}{answer.unit_name}"
    shown = ", ".join(names[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
    rows = [
        ("model", f"{config.model.label}, {result['checkpoint'].rpartition('/')[0]}"),
        ("input", _name_input(taken)),
        ("output", f"float32 [{'images' if 'resized_to' in taken else 'N'}, {sizes}], {answer.name} of {shown}"),
        *([] if result["quantize"] == "none" else [("weights", WEIGHTS[result["quantize"]])]),
        ("difference", f"{difference} at most from accumtrain's own, when loaded without it"),
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
    make_results_folder(path.parent)
    try:
        with replacing(path) as unfinished:
            yield unfinished
    except tf.errors.OpError as error:
        full = "No space left on device" in error.message
        reason = "no space left on the device" if full else first_line(error)
        raise CheckpointError(f"{path} can't be written: {reason}; fix that and run the same command again") from error


# ---- the comparison with the file, as a process without accumtrain loads it ----


PROGRAM = Path(__file__).with_name("reload.py")


def largest_difference(exported: Exported, path: Path) -> float:
    """Return the largest difference of an answer between the file and the run, over all samples.

    Raises:
        VerificationError: another process can't load the file, or not as it was written.
    """
    samples = {f"sample_{number}": sample for number, sample in enumerate(exported.inputs.samples())}
    with temporary_folder("export") as folder:
        inputs, outputs = folder / "inputs.npz", folder / "outputs.npz"
        np.savez(inputs, allow_pickle=False, **samples)
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
            if answers["class_names"].tolist() != exported.answer.columns:
                raise VerificationError("the class names in what was written are not those of the run")
            differences = [
                np.abs((answers[name] - _predict(exported, batch)) / exported.answer.unit).max()
                for name, batch in samples.items()
            ]
            return float(np.max(differences))  # NaN if one is: Python's max may drop it


def _predict(exported: Exported, sample: np.ndarray) -> np.ndarray:
    """Return the run's answers, float32 [N, K], to a sample of inputs, as in an evaluation."""
    answers: np.ndarray = exported.infer(exported.inputs.prepare(sample)).numpy()
    return answers
