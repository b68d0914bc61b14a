"""Two kinds of CPU kernels of which either may be faster, and how long the kernels of a run take with each.

On CPUs with instructions for neural networks TensorFlow uses oneDNN's kernels. It leaves them off on all others, where
either oneDNN's or its own may be faster. And where the CPU has instructions for 16 bits, float32 may still be faster.
Both depend on the model and on the size of the images. TensorFlow reads the first choice once, when it is imported, so
each kind of kernels is timed in a child process of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.convert import from_mapping, to_mapping
from accumtrain.config.schema import Config, DebugConfig
from accumtrain.console import say
from accumtrain.errors import CheckpointError, OutOfMemoryError, first_line
from accumtrain.kinds.groups import are_own_rows
from accumtrain.kinds.model_keys import STORE
from accumtrain.planning.probe import SHARE, measure_in_child
from accumtrain.process import child, environment
from accumtrain.process.environment import KERNELS_16BIT, ONEDNN
from accumtrain.process.free_memory import free_bytes
from accumtrain.process.own_source import source_digest
from accumtrain.process.processor import cpu
from accumtrain.process.program import own_program
from accumtrain.process.temporary_folder import temporary_folder
from accumtrain.process.user_cache import user_cache
from accumtrain.runs.files import read_json, write_json
from accumtrain.runs.provenance import versions

TASK = "accumtrain.planning.kernel_comparison:answer"
PIXELS = 16 * 224**2  # of a micro-batch that are timed at most; fewer of small images say too little
SECONDS = "seconds"  # of the kernels of a micro-step, for each value of the variable
FAILED = "failed"  # why the kernels fail
DECIDING = ("model", "data", "precision", "batch_size", "accum", "loss")  # groups and keys that decide the kernels


@dataclass(frozen=True)
class KernelKinds:
    """Two kinds of kernels.

    Attributes:
        variable: of the environment, with "0" or "1" as its value.
        names: of the kernels by that value, the default first.
        stem: of the names of files: of what was measured, in the user's cache folder, and of the run's own record.
        once: TensorFlow reads the variable once, when it is imported.
    """

    variable: str
    names: Mapping[str, str]
    stem: str
    once: bool


LIBRARY = KernelKinds(ONEDNN, {"0": "TensorFlow's own", "1": "oneDNN's"}, "kernels", once=True)
# kernels that compute in bfloat16, or in float32 from its values
IN_16_BITS = KernelKinds(KERNELS_16BIT, {"1": "bfloat16's", "0": "float32's"}, "kernels_16bit", once=False)


def seconds_of_each(config: Config, kinds: KernelKinds) -> dict[str, float] | None:
    """Seconds for each value of the variable, measured now or before; infinity for kernels that fail here.

    Returns:
        None, and says why, if they can't be compared.

    Raises:
        AccumtrainError: the run would fail, for example for missing data.
        KeyboardInterrupt: a signal stopped the measurement.
    """
    # whatever the policy: all give the same bits only with the same kernels
    config = replace(config, model=config.model.with_policy(STORE))
    path = _cache(config, kinds)
    found = None if path is None else _read(path, kinds)
    if found is not None:
        return found
    seconds = measure(config, kinds)
    if seconds is not None and path is not None and math.inf not in seconds.values():
        with suppress(OSError, CheckpointError):  # a disk that is full or not writable costs the next run some seconds
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {SECONDS: seconds})
    return seconds


def _cache(config: Config, kinds: KernelKinds) -> Path | None:
    """The file for what decides the kernels and their speed, in the user's cache folder; None if there can be none."""
    folder, own = user_cache(), are_own_rows(config)
    program = _changed(own_program()[-1])  # a user's file that builds the model
    if folder is None or not (own or program):
        return None
    values = to_mapping(config)
    # the size of the images need not follow from the configuration
    code = [source_digest(), versions(), None if own else program, _changed(getattr(config.data, "path", ""))]
    machine = [cpu(), os.cpu_count(), environment.kernel_settings()]
    facts = [{key: values[key] for key in DECIDING}, PIXELS, code, machine]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return folder / f"{kinds.stem}_{digest}.json"


def _changed(path: str) -> int | None:
    """When the file or folder was last changed; None if there is none."""
    with suppress(OSError):
        return Path(path).stat().st_mtime_ns if path else None
    return None


def _read(path: Path, kinds: KernelKinds) -> dict[str, float] | None:
    """The seconds that were measured before; None if there are none."""
    if not path.exists():
        return None
    try:
        found = read_json(path).get(SECONDS)
    except CheckpointError:
        return None  # damaged: it is measured again
    if not isinstance(found, dict) or found.keys() != kinds.names.keys():
        return None
    return found if all(isinstance(each, float) and each > 0 for each in found.values()) else None


def measure(config: Config, kinds: KernelKinds) -> dict[str, float] | None:
    """Times both now. What is returned and raised is as for `seconds_of_each`."""
    say(f"timing {' CPU kernels and '.join(kinds.names.values())}, once for this model and size")
    steps = 1 if config.accum.is_auto else config.accum.count
    device = replace(config.device, memory_limit_mb=None)  # each kernel runs alone, so little memory is taken
    timed = replace(config.with_accum_steps(1), device=device, debug=DebugConfig())
    request = {
        child.TASK: TASK,
        "config": to_mapping(timed),
        "micro_batch": micro_batch_size(config.batch_size, steps, 1),
        "free_mb": int(SHARE * free_bytes()) // 2**20,
    }
    seconds = {}
    for value, name in kinds.names.items():
        with temporary_folder("kernels") as folder:
            try:
                measured = measure_in_child(request, folder, {kinds.variable: value})
            except RuntimeError as error:  # it crashed, or there is a bug: the run itself will say so
                measured = {FAILED: first_line(error).rstrip(":")}
        if measured is None:
            say(f"timing {name} kernels takes more memory than is free")
            return None
        if FAILED in measured:
            say(f"{name} kernels fail here: {measured[FAILED]}")
        seconds[value] = measured.get(SECONDS, math.inf)
        if not seconds[value]:
            say("this model has no convolution, matrix product or batch norm to time")
            return None
    return None if min(seconds.values()) == math.inf else seconds


# --- in the child -----------------------------------------------------------------------------------------------


def answer(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The seconds of the kernels of a micro-step in this process, or why they fail."""
    config = from_mapping(request["config"])
    environment.limit_without_job(request["free_mb"])  # it is refused memory before the machine has none
    environment.prepare(config.device, probed=True)
    import tensorflow as tf

    from accumtrain.data.open_data import open_data
    from accumtrain.devices.resolve import resolve
    from accumtrain.engine.dry_run import DryRun
    from accumtrain.engine.kernel_timer import seconds_of_kernels
    from accumtrain.planning.tensorflow_errors import in_user_words

    doing = folder / child.DOING
    doing.write_text("opening the data", encoding="utf-8")
    data = open_data(config.data, config.run.seed)
    pixels = math.prod(data.image_shape[:2])
    config = replace(config, batch_size=min(request["micro_batch"], max(1, PIXELS // pixels)))
    doing.write_text("tracing the model and timing its kernels", encoding="utf-8")
    devices = resolve(config.device)
    with in_user_words(config, data):
        dry_run = DryRun(config, data, devices, config.batch_size, folder / "checkpoints", 1)
        graph = dry_run.step.prepare(dry_run.batches).graph
        try:
            return {SECONDS: seconds_of_kernels(graph, config.batch_size)}
        except tf.errors.ResourceExhaustedError as error:
            raise OutOfMemoryError(str(error)) from error
        except tf.errors.OpError as error:
            return {FAILED: first_line(error)}
