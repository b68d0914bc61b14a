"""Which CPU kernels a run uses: TensorFlow's own or oneDNN's, by measurement.

TensorFlow uses oneDNN's by default only on CPUs with instructions for neural networks, and leaves them off on all
others, where either may be faster: it depends on the model and on the size of the images. TensorFlow reads the choice
once, when it is imported, so each kind of kernels is timed in a child process of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
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
from accumtrain.process.environment import ONEDNN
from accumtrain.process.processor import cpu
from accumtrain.process.user_cache import user_cache
from accumtrain.runs.files import read_json, write_json
from accumtrain.runs.folder import folder_of
from accumtrain.runs.provenance import versions

TASK = "accumtrain.planning.kernel_choice:answer"
FILE = "kernels.json"  # in the run's folder: a continued run uses the kernels that it began with
# with one of these TensorFlow uses oneDNN's kernels by default
NEURAL = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16"}
PIXELS = 16 * 224**2  # of a micro-batch that are timed at most; fewer of small images say too little
WORTH = 1.1  # how many times as fast oneDNN's kernels must be by themselves: whole updates gain less
SECONDS = "seconds"  # of the kernels of a micro-step, for each value of ONEDNN
KERNELS = {"0": "TensorFlow's own", "1": "oneDNN's"}  # by the value of ONEDNN


def choose_kernels(config: Config, job: Job) -> None:
    """Sets ONEDNN in the environment for this process and its children, before TensorFlow is imported.

    The choice of the user, of the run that is continued, or of an earlier measurement stays; else both are measured.

    Raises:
        AccumtrainError: the run would fail, for example for missing data.
        KeyboardInterrupt: a signal stopped the measurement.
    """
    if not _is_open(config, job):
        return
    places = [path for path in (folder_of(config) / FILE, _cache(config)) if path is not None]
    seconds = next(filter(None, map(_read, places)), None) or measure(config)
    if seconds is None:
        say("the kernels can't be compared: TensorFlow's own are used")
        return
    for path in places:
        with suppress(OSError, CheckpointError):  # a full disk is told by what can't do without it
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {SECONDS: seconds})
    ratio = seconds["0"] / seconds["1"]
    os.environ[ONEDNN] = used = "1" if ratio >= WORTH else "0"
    timed = f"for this model and size oneDNN's are {ratio:.2f} times as fast here"
    say(f"{KERNELS[used]} kernels are used ({ONEDNN}={used}): {timed}")


def _is_open(config: Config, job: Job) -> bool:
    """Whether nothing decides yet, and either may be faster."""
    instructions = set(cpu()["instructions"])
    return (
        job.chooses_kernels
        and "tensorflow" not in sys.modules
        and ONEDNN not in os.environ
        and environment.on_one_cpu(config.device)
        and config.device.xla is not True
        and "avx2" in instructions
        and not instructions & NEURAL
    )


def _read(path: Path) -> dict[str, float] | None:
    """The seconds that were measured before; None if there are none."""
    if not path.exists():
        return None
    try:
        found = read_json(path).get(SECONDS)
    except CheckpointError:
        return None  # damaged: it is measured again
    if not isinstance(found, dict) or found.keys() != KERNELS.keys():
        return None
    return found if all(isinstance(each, float) and each > 0 for each in found.values()) else None


def _cache(config: Config) -> Path | None:
    """The file for this model, data, size, CPU and software in the user's cache folder; None if there is no folder."""
    values = to_mapping(config)
    keys = ("model", "data", "precision", "batch_size", "accum", "loss")
    facts = [{key: values[key] for key in keys}, PIXELS, cpu(), os.cpu_count(), versions()]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = user_cache()
    return None if folder is None else folder / f"kernels_{digest}.json"


def measure(config: Config) -> dict[str, float] | None:
    """Seconds for each value of ONEDNN; None if there is too little memory for it, or one kind of kernels fails."""
    say("timing TensorFlow's own CPU kernels and oneDNN's, once for this model and size")
    steps = 1 if config.accum.is_auto else config.accum.count
    request = {
        child.TASK: TASK,
        "carried": sorted({row.carried for row in chosen_rows(config) if row.carried}),
        "config": to_mapping(config.with_accum_steps(1)),
        "micro_batch": micro_batch_size(config.batch_size, steps, 1),
    }
    seconds = {}
    for value in KERNELS:
        with tempfile.TemporaryDirectory(prefix="accumtrain-kernels-") as name:
            try:
                measured = measure_in_child(request, Path(name), {ONEDNN: value})
            except RuntimeError as error:  # if the run itself fails, too, it says so
                say(f"{KERNELS[value]} kernels fail here: {str(error).strip().splitlines()[-1]}")
                return None
        if measured is None:
            say(f"timing {KERNELS[value]} kernels takes more memory than is free")
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
