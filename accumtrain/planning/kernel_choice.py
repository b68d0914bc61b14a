"""Which CPU kernels a run uses, by measurement.

On CPUs with instructions for neural networks TensorFlow uses oneDNN's kernels. It leaves them off on all others, where
either oneDNN's or its own may be faster. And where the CPU has instructions for 16 bits, float32 may still be faster.
Both depend on the model and on the size of the images. TensorFlow reads the first choice once, when it is imported, so
each kind of kernels is timed in a child process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.convert import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import say
from accumtrain.errors import CheckpointError
from accumtrain.kinds.groups import chosen_rows
from accumtrain.kinds.jobs import Job
from accumtrain.kinds.table import load
from accumtrain.planning.probe import measure_in_child
from accumtrain.process import child, environment
from accumtrain.process.environment import KERNELS_16BIT, ONEDNN
from accumtrain.process.processor import FOR_16_BITS, cpu
from accumtrain.process.user_cache import user_cache
from accumtrain.runs.files import read_json, write_json
from accumtrain.runs.folder import folder_of
from accumtrain.runs.provenance import versions

TASK = "accumtrain.planning.kernel_choice:answer"
# with one of these TensorFlow uses oneDNN's kernels by default
NEURAL = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16"}
# with one of these a CPU makes sixteen times the multiplications of float32 in 16 bits, so there is nothing to measure
MATRIX = {"amx_bf16", "amx_fp16"}
PIXELS = 16 * 224**2  # of a micro-batch that are timed at most; fewer of small images say too little
WORTH = 1.1  # how many times as fast other kernels than the default must be by themselves: whole updates gain less
SECONDS = "seconds"  # of the kernels of a micro-step, for each value of the variable


@dataclass(frozen=True)
class KernelChoice:
    """Two kinds of kernels.

    Attributes:
        variable: of the environment, with "0" or "1" as its value.
        kernels: the name of the kernels by that value, the default first.
        stem: of the name of the file that holds what was measured, in the user's cache folder and in the run's folder;
            a continued run uses the kernels that it began with.
    """

    variable: str
    kernels: Mapping[str, str]
    stem: str


LIBRARY = KernelChoice(ONEDNN, {"0": "TensorFlow's own", "1": "oneDNN's"}, "kernels")


def in_16_bits(precision: str) -> KernelChoice:
    """Kernels that compute in `precision`, or in float32 from its values."""
    return KernelChoice(KERNELS_16BIT, {"1": f"{precision}'s", "0": "float32's"}, "kernels_16bit")


def choose_kernels(config: Config, job: Job) -> None:
    """Sets a variable in the environment for this process and its children, before TensorFlow is imported.

    The choice of the user, of the run that is continued, or of an earlier measurement stays; else both are measured.
    A job that only uses a run computes as that run did, and measures nothing.

    Raises:
        AccumtrainError: the run would fail, for example for missing data.
        KeyboardInterrupt: a signal stopped the measurement.
    """
    choice = _open_choice(config, job)
    if choice is None:
        return
    seconds = _read(_of_run(config, choice)) if job.needs_a_run else _found_or_measured(config, choice)
    if seconds is None:
        return
    default, other = choice.kernels
    ratio = seconds[default] / seconds[other]
    os.environ[choice.variable] = used = other if ratio >= WORTH else default
    timed = f"for this model and size {choice.kernels[other]} are {ratio:.2f} times as fast here"
    say(f"{choice.kernels[used]} kernels are used ({choice.variable}={used}): {timed}")


def _open_choice(config: Config, job: Job) -> KernelChoice | None:
    """The kernels of which either may be faster, if nothing decides yet."""
    instructions = set(cpu()["instructions"])
    # under a limit what no probe has looked at computes without oneDNN, which may crash there
    as_its_run = job.needs_a_run and config.device.memory_limit_mb is None
    if not (
        (job.chooses_kernels or as_its_run)
        and "tensorflow" not in sys.modules
        and environment.on_one_cpu(config.device)
        and config.device.xla is not True
    ):
        return None
    if not instructions & NEURAL:
        return LIBRARY if "avx2" in instructions and ONEDNN not in os.environ else None
    by_accumtrain = config.model.kind != "keras"  # Keras's layers choose their dtype themselves
    computes = instructions & FOR_16_BITS.get(config.precision, set()) and os.environ.get(ONEDNN) != "0"
    if computes and by_accumtrain and not instructions & MATRIX and KERNELS_16BIT not in os.environ:
        return in_16_bits(config.precision)
    return None


def _found_or_measured(config: Config, choice: KernelChoice) -> dict[str, float] | None:
    """The seconds, which are kept for the run and for the next one like it; None if the kernels can't be compared."""
    places = [path for path in (_of_run(config, choice), _cache(config, choice)) if path is not None]
    seconds = next(filter(None, map(_read, places)), None) or measure(config, choice)
    if seconds is None:
        default, _ = choice.kernels.values()
        say(f"the kernels can't be compared: {default} are used")
        return None
    for path in places:
        with suppress(OSError, CheckpointError):  # a full disk is told by what can't do without it
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {SECONDS: seconds})
    return seconds


def _read(path: Path) -> dict[str, float] | None:
    """The seconds that were measured before; None if there are none."""
    if not path.exists():
        return None
    try:
        found = read_json(path).get(SECONDS)
    except CheckpointError:
        return None  # damaged: it is measured again
    if not isinstance(found, dict) or found.keys() != LIBRARY.kernels.keys():
        return None
    return found if all(isinstance(each, float) and each > 0 for each in found.values()) else None


def _of_run(config: Config, choice: KernelChoice) -> Path:
    return folder_of(config) / f"{choice.stem}.json"


def _cache(config: Config, choice: KernelChoice) -> Path | None:
    """The file for this model, data, size, CPU and software in the user's cache folder; None if there is no folder."""
    values = to_mapping(config)
    keys = ("model", "data", "precision", "batch_size", "accum", "loss")
    facts = [{key: values[key] for key in keys}, PIXELS, cpu(), os.cpu_count(), versions()]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = user_cache()
    return None if folder is None else folder / f"{choice.stem}_{digest}.json"


def measure(config: Config, choice: KernelChoice) -> dict[str, float] | None:
    """Seconds for each value of the variable; None if there is too little memory, or one kind of kernels fails."""
    say(f"timing {' CPU kernels and '.join(choice.kernels.values())}, once for this model and size")
    steps = 1 if config.accum.is_auto else config.accum.count
    request = {
        child.TASK: TASK,
        "carried": sorted({row.carried for row in chosen_rows(config) if row.carried}),
        "config": to_mapping(config.with_accum_steps(1)),
        "micro_batch": micro_batch_size(config.batch_size, steps, 1),
    }
    seconds = {}
    for value, kernels in choice.kernels.items():
        with tempfile.TemporaryDirectory(prefix="accumtrain-kernels-") as name:
            try:
                measured = measure_in_child(request, Path(name), {choice.variable: value})
            except RuntimeError as error:  # if the run itself fails, too, it says so
                say(f"{kernels} kernels fail here: {str(error).strip().splitlines()[-1]}")
                return None
        if measured is None:
            say(f"timing {kernels} kernels takes more memory than is free")
            return None
        seconds[value] = measured[SECONDS]
    return seconds


# --- in the child -----------------------------------------------------------------------------------------------


def answer(request: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """The seconds of the kernels of a micro-step in this process."""
    for target, argument in request["carried"]:
        load(target)(argument)
    config = from_mapping(request["config"])
    device = replace(config.device, memory_limit_mb=None)  # each kernel runs alone, so little memory is taken
    environment.prepare(device)

    from accumtrain.data.open_data import open_data
    from accumtrain.devices.resolve import resolve
    from accumtrain.engine.dry_run import DryRun
    from accumtrain.engine.kernel_timer import seconds_of_kernels
    from accumtrain.planning.tensorflow_errors import in_user_words

    doing = folder / child.DOING
    doing.write_text("opening the data")
    data = open_data(config.data, config.run.seed)
    height, width, *_ = data.image_shape
    examples = min(request["micro_batch"], max(1, PIXELS // (height * width)))
    config = replace(config, batch_size=examples, device=device)
    doing.write_text("tracing the model and timing its kernels")
    devices = resolve(device)
    with in_user_words(config, data):
        dry_run = DryRun(config, data, devices, config.batch_size, folder / "checkpoints", 1)
        graph = dry_run.step.prepare(dry_run.batches).graph
        return {SECONDS: seconds_of_kernels(graph, config.batch_size)}
