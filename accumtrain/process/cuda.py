"""NVIDIA GPUs of this machine, and what it lacks to compute on them. No TensorFlow is imported."""

from __future__ import annotations

import csv
import ctypes
import importlib.metadata
import importlib.util
import os
import re
import runpy
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

INSTALL_JAX = "pip install 'accumtrain[jax-cuda13]'"
JAX_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")  # packages by which JAX computes on a GPU
INSTALL = "pip install 'accumtrain[gpu]'"
BUILD_INFO = "python/platform/build_info.py"  # in TensorFlow's package: a file that imports nothing of it
EXTRA = "and-cuda"  # of tensorflow: CUDA's libraries
CUDNN = "libcudnn.so.{}"
CUSOLVER = "lib/libcusolver.so.*"  # in the folder of its wheel
VISIBLE = "CUDA_VISIBLE_DEVICES"
QUERIED_FIELDS = ("name", "memory.total", "compute_cap", "driver_version")
PATIENCE = 5  # seconds for the driver's answer
MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU, as its driver describes it.

    Attributes:
        memory: bytes.
        capability: compute capability: 80 for 8.0.
    """

    name: str
    memory: int
    capability: int
    driver: str


def cuda_build() -> Mapping[str, Any]:
    """Return facts about the build of the installed TensorFlow.

    They are is_cuda_build, cuda_version, cudnn_version and cuda_compute_capabilities.
    """
    spec = importlib.util.find_spec("tensorflow")
    file = Path(spec.origin).parent / BUILD_INFO if spec and spec.origin else None
    return runpy.run_path(str(file))["build_info"] if file and file.exists() else {"is_cuda_build": False}


def find_gpus() -> list[Gpu]:
    """Return the GPUs that the driver's own program lists; none if there is no driver, or it does not answer."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERIED_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = []
    for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True):
        with suppress(ValueError):  # a driver that does not know the question answers in words
            name, memory, capability, driver = row
            gpus.append(Gpu(name, int(memory) * MIB, int(capability.replace(".", "")), driver))
    return gpus


def has_gpu_node() -> bool:
    """Return whether this machine shows an NVIDIA GPU, with or without a driver that works."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def hides_gpus() -> bool:
    """Return whether the environment hides all GPUs from TensorFlow."""
    return os.environ.get(VISIBLE) in ("", "-1")


def has_jax_for_gpu() -> bool:
    """Return whether JAX is installed with what it needs to compute on an NVIDIA GPU."""
    return find_spec("jax") is not None and any(find_spec(name) is not None for name in JAX_PLUGINS)


def shows_gpu() -> bool:
    """Return whether this machine has an NVIDIA GPU that the environment does not hide."""
    return has_gpu_node() and not hides_gpus()


def load_cusolver() -> None:
    """Load cuSOLVER from its wheel, so that TensorFlow finds it. Do nothing without the wheel or a GPU.

    TensorFlow 2.21 searches the folders of all of CUDA's wheels but this one, and without cuSOLVER it uses no GPU. It
    finds a library by its name if the process has loaded it already.
    """
    if shows_gpu():
        for library in _cusolver():
            _can_load(library)  # `explain_missing_gpu` names one that can't be loaded


def explain_missing_gpu(build: Mapping[str, Any], gpus: Sequence[Gpu]) -> str | None:
    """Return what is missing to train on a GPU, with the remedy; None if nothing is seen to be missing."""
    if not gpus and not has_gpu_node():
        return f"this machine shows no NVIDIA GPU; on one that has: {INSTALL}"
    if not gpus:
        return "the GPU's driver does not answer nvidia-smi: install NVIDIA's driver, 525 or newer"
    if not build["is_cuda_build"]:
        return f"the TensorFlow that is installed is built without CUDA: {INSTALL} in a new environment"
    capabilities = [int(name.rpartition("_")[2]) for name in build["cuda_compute_capabilities"]]
    for gpu in gpus:
        if not min(capabilities) <= gpu.capability <= max(capabilities):
            by_jax = f"device.runtime=jax after {INSTALL_JAX}, which has not been tried on such a card"
            other = by_jax if gpu.capability > max(capabilities) else "a TensorFlow that is built for it"
            return (
                f"{gpu.name} has compute capability {_dotted(gpu.capability)}, and this TensorFlow is built for "
                f"{_dotted(min(capabilities))} to {_dotted(max(capabilities))} (up to Hopper, without Blackwell): use "
                f"device=cpu, or {other}"
            )
    if (absent := _absent_libraries()) and not _can_load(CUDNN.format(build["cudnn_version"])):
        return f"CUDA's libraries are not installed ({', '.join(absent[:3])}, ...): {INSTALL}"
    for library in _cusolver():
        if not _can_load(library):
            return f"{library} can't be loaded: {INSTALL} in a new environment"
    return None


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def _absent_libraries() -> list[str]:
    """Return the packages with CUDA's libraries that tensorflow[and-cuda] asks for, and that are not installed."""
    needs = importlib.metadata.requires("tensorflow") or []
    names = [match[0] for need in needs if EXTRA in need and (match := re.match(r"[\w-]+", need))]
    installed = {found.name.replace("_", "-").lower() for found in importlib.metadata.distributions() if found.name}
    return [name for name in names if name not in installed]


def _cusolver() -> list[str]:
    """Return the files of cuSOLVER in its wheel: one, or none where the wheel is not installed."""
    if importlib.util.find_spec("nvidia") is None:
        return []
    wheel = importlib.util.find_spec("nvidia.cusolver")
    folders = wheel.submodule_search_locations or [] if wheel else []
    return [str(file) for folder in folders for file in Path(folder).glob(CUSOLVER)]


def _can_load(library: str) -> bool:
    """Return whether the dynamic linker finds the library, as where the system, not pip, has installed CUDA."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
