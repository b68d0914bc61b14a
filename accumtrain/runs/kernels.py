"""The choice between two kinds of CPU kernels, of which either may be faster, by the machine and the configuration.

On CPUs with instructions for neural networks TensorFlow uses oneDNN's kernels. It leaves them off on all others, where
oneDNN's are the faster ones but for small images. On Intel's processors with instructions for bfloat16, but none for
matrices of it, float32 is faster (docs/kernels.md). A run that goes on with another processor takes the kernels of that
one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from accumtrain.config.jobs import Job
from accumtrain.config.registries import has_builtin_layers
from accumtrain.config.schema import Config
from accumtrain.console import say
from accumtrain.errors import ConfigError
from accumtrain.fields import JAX
from accumtrain.process import environment
from accumtrain.process.environment import KERNELS_16BIT, ONEDNN
from accumtrain.process.machine import FOR_16_BITS, INTEL, MATRIX_BFLOAT16, cpu, read_vendor

# Instruction sets with one of which TensorFlow uses oneDNN's kernels by default.
NEURAL = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16"}
SMALL = 16  # pixels of height and width; TensorFlow's own kernels are the faster ones for smaller images


@dataclass(frozen=True)
class KernelKinds:
    """Two kinds of kernels.

    Attributes:
        variable: of the environment, with "0" or "1" as its value.
        names: of the kernels by that value, the default first.
        once: TensorFlow reads the variable once, when it is imported.
    """

    variable: str
    names: Mapping[str, str]
    once: bool


LIBRARY = KernelKinds(ONEDNN, {"0": "TensorFlow's own", "1": "oneDNN's"}, once=True)
# kernels that compute in bfloat16, or in float32 from its values
IN_16_BITS = KernelKinds(KERNELS_16BIT, {"1": "bfloat16's", "0": "float32's"}, once=False)


@contextmanager
def choose_kernels(config: Config, job: Job) -> Iterator[None]:
    """Choose the kernels of this process and its children by the environment, for the time of this context.

    A choice of the user, or by TensorFlow's import, stays. Else a rule decides, for a run and for jobs that use it.

    Raises:
        ConfigError: a variable has another value than 0 or 1.
    """
    for variable in (LIBRARY, IN_16_BITS):
        _check(variable)
    kinds = _open_kinds(config, job)
    if kinds is None:
        yield
        return
    before = os.environ.get(kinds.variable)
    os.environ[kinds.variable] = _decide(config, kinds)
    try:
        yield
    finally:
        if not (kinds.once and "tensorflow" in sys.modules):  # the next job in this process decides for itself
            del os.environ[kinds.variable]
            if before is not None:
                os.environ[kinds.variable] = before


def _check(kinds: KernelKinds) -> None:
    given = os.environ.get(kinds.variable)
    if given is not None and given not in kinds.names:
        meaning = " and ".join(f"{value} for {name}" for value, name in sorted(kinds.names.items()))
        raise ConfigError(
            f"{kinds.variable}={given!r} in the environment: must be 0 or 1, {meaning} kernels; "
            "without it the choice is made for you"
        )


def _open_kinds(config: Config, job: Job) -> KernelKinds | None:
    """Return the kinds of kernels of which either may be faster for this run on this machine."""
    instructions = set(cpu()["instructions"])
    # under a limit a job that no probe has tried computes without oneDNN, which may crash there
    as_its_run = job.scope == "trained" and config.device.memory_limit_mb is None
    by_xla = config.device.xla is True or config.device.runtime == JAX
    if by_xla or not ((job.chooses_kernels or as_its_run) and environment.on_cpu(config.device)):
        return None
    if not instructions & NEURAL:
        return LIBRARY if "avx2" in instructions else None
    in_bfloat16 = config.precision == "bfloat16" and os.environ.get(ONEDNN) != "0"
    # with instructions for matrices bfloat16 is the faster one on all processors
    either = instructions & FOR_16_BITS["bfloat16"] and MATRIX_BFLOAT16 not in instructions
    return IN_16_BITS if in_bfloat16 and either and has_builtin_layers(config) else None


def _decide(config: Config, kinds: KernelKinds) -> str:
    """Return the value of the variable, and print the reason but for what the user has said."""
    given = os.environ.get(kinds.variable)
    if kinds.once and "tensorflow" in sys.modules:
        used = given or next(iter(kinds.names))
        reason = f"TensorFlow was imported in this process before ({kinds.variable}={used})"
        say(f"{kinds.names[used]} kernels are used: {reason}")
        return used
    if given is not None:
        return given
    used, reason = _choose_by_rule(config, kinds)
    say(f"{kinds.names[used]} kernels are used ({kinds.variable}={used}): {reason}")
    return used


def _choose_by_rule(config: Config, kinds: KernelKinds) -> tuple[str, str]:
    """Return the value of the variable for the images of a run and this processor, and the reason."""
    height, width = config.data.known_pixels or (SMALL, SMALL)
    if kinds is LIBRARY and height * width < SMALL**2:
        return "0", f"they are the faster ones for images of less than {SMALL} x {SMALL} pixels"
    if kinds is IN_16_BITS and read_vendor() == INTEL:
        return "0", "they are the faster ones on Intel's processors without AMX"
    return "1", "they are the faster ones on this processor"
