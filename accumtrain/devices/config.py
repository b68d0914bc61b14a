"""The keys of each kind of device, their registry `DEVICES`, and the topologies of TPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.fields import (
    COUNT,
    JAX,
    NOT_NEGATIVE,
    TENSORFLOW,
    OneOf,
    Range,
    Role,
    Word,
    format_value,
    suggest_names,
)
from accumtrain.registry import ComponentConfig, Entry, Registry

# GiB of HBM that one device addresses. The Cloud TPU documentation gives them per chip ("System architecture"): 16, 32,
# 32, 16, 95 and 32. A chip of v2 and v3 has two devices; v4 and v5p join two cores into one device.
HBM = {"v2": 8, "v3": 16, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32}
MEMORY, SESSION = Role.COMMAND | Role.MEMORY, Role.COMMAND | Role.SESSION
TOPOLOGY = re.compile(r"(?P<generation>\w+):[1-9]\d*(x[1-9]\d*){1,2}")


def check_topology(topology: str) -> None:
    """Raise ConfigError unless `topology` is a known generation and its chips in two or three dimensions."""
    match = TOPOLOGY.fullmatch(topology)
    if match is None:
        raise ConfigError(
            f"device.tpu_topology={topology}: must be a generation and its chips along each axis, for example v5e:2x2"
        )
    generation = match["generation"]
    if generation not in HBM:
        known = [topology.replace(generation, other, 1) for other in HBM]
        raise ConfigError(f"device.tpu_topology={topology}: no such generation; {suggest_names(topology, known)}")


def hbm_bytes(topology: str) -> int:
    """Return the bytes of memory of one device of a topology that has passed `check_topology`."""
    return HBM[topology.partition(":")[0]] * 2**30


@dataclass(kw_only=True)
class DeviceConfig(ComponentConfig):
    """Keys of every device. A kind refuses those of `virtual`, `memory_limit_mb`, `workers`, `index` and `tpu` that it
    does not use.

    `virtual`: split the CPU into this many logical devices.
    `memory_limit_mb`: hard limit in MiB of the memory of tensors, on the CPU or on each GPU. The process takes more:
    Python and TensorFlow themselves need several hundred MB. With runtime=jax the limit is compared with what the
    compiler has planned, before anything runs.
    `tpu`: name or address of the TPU; null is this machine's.
    `tpu_topology`: generation and chips of the TPU that job=plan compiles for.
    `runtime`: tensorflow computes with its own kernels, jax with the XLA of JAX, which is newer than TensorFlow's. jax
    needs pip install 'accumtrain[jax]', for a GPU 'accumtrain[jax-cuda13]', for a TPU 'accumtrain[jax-tpu]'. auto: jax
    on a GPU if it is installed for one, else tensorflow.
    `xla`: whether XLA compiles the micro-steps; auto: on a TPU only. XLA is less exact: in a new RevNet-38 single
    channels of the gradient were off by up to 1.6e-2, with TensorFlow's kernels by 6e-6.
    `tensor_float_32`: whether a GPU may round the factors of float32 products to 10 bits (TF32), which is faster.
    `workers`: host:port of every worker, the chief first. Needed only if neither TF_CONFIG nor SLURM names them.
    `index`: number of this process in device.workers, from 0 on.
    `timeout`: seconds to wait for the other workers at the start.

    Attributes:
        has_limit: the kind uses `memory_limit_mb`.
        has_workers: the kind trains in several processes and uses `workers` and `index`.
        has_address: the kind uses `tpu`.
        may_compute_on_cpu: the kind takes CPUs if it takes no GPU, and uses `virtual`.
        may_compute_on_gpu: the kind takes a GPU if there is one, and uses `tensor_float_32`.
        may_run_jax: the kind is of devices of this machine that JAX may compute on.
        as_it_is: the kind takes a process in which TensorFlow computes already as it is.
    """

    kind: Annotated[str, MEMORY] = ""
    virtual: Annotated[int | None, COUNT, MEMORY] = None
    memory_limit_mb: Annotated[int | None, COUNT, MEMORY] = None
    tpu: str | None = None
    xla: Annotated[bool | str, Word("auto", "must be true, false or auto"), MEMORY] = "auto"
    tensor_float_32: bool = False
    workers: Annotated[list[str], SESSION] = field(default_factory=list)
    index: Annotated[int | None, NOT_NEGATIVE, SESSION] = None
    timeout: Annotated[int, Range(1, 7 * 24 * 3600, closed=True)] = 300
    tpu_topology: str = "v5e:2x2"
    runtime: Annotated[str, OneOf((TENSORFLOW, JAX, "auto"))] = TENSORFLOW

    ROLE: ClassVar[Role] = Role.COMMAND
    has_limit: ClassVar[bool] = True
    has_workers: ClassVar[bool] = False
    has_address: ClassVar[bool] = False
    may_compute_on_cpu: ClassVar[bool] = False
    may_compute_on_gpu: ClassVar[bool] = False
    may_run_jax: ClassVar[bool] = False
    as_it_is: ClassVar[bool] = False

    def check(self) -> None:
        check_topology(self.tpu_topology)
        if self.virtual is not None and not self.may_compute_on_cpu:
            raise ConfigError(
                f"device.virtual={self.virtual}: splits the CPU into logical devices, not device={self.kind}; "
                "use device=mirrored, or leave device.virtual out"
            )
        if self.memory_limit_mb is not None and not self.has_limit:
            raise ConfigError(
                f"device.memory_limit_mb={self.memory_limit_mb}: limits the memory of a CPU or GPU, not of "
                f"device={self.kind}; leave it out"
            )
        if not self.has_workers and (self.workers or self.index is not None):
            key = "workers" if self.workers else "index"
            raise ConfigError(
                f"device.{key}={format_value(getattr(self, key))}: only device=multiworker has workers; "
                "add device=multiworker or leave it out"
            )
        if self.tpu is not None and not self.has_address:
            raise ConfigError(f"device.tpu={self.tpu}: only device=tpu has an address; add device=tpu or leave it out")
        if self.tensor_float_32 and (not self.may_compute_on_gpu or self.virtual is not None):
            where = self.kind if self.virtual is None else f"{self.kind} device.virtual={self.virtual}"
            raise ConfigError(
                f"device.tensor_float_32=true: rounds products of GPUs, not of device={where}; leave it out, or "
                "use device=gpu"
            )

    @property
    def known_replicas(self) -> int:
        """Number of replicas that the keys imply. GPUs and TPU cores are counted only when a job begins."""
        return (self.virtual or 1) * (len(self.workers) or 1)


@dataclass(kw_only=True)
class AutoConfig(DeviceConfig):
    """The first that exists of a TPU, all GPUs and the CPU."""

    kind: str = "auto"
    may_run_jax: ClassVar[bool] = True
    may_compute_on_gpu: ClassVar[bool] = True
    may_compute_on_cpu: ClassVar[bool] = True


@dataclass(kw_only=True)
class CpuConfig(DeviceConfig):
    """The CPU."""

    kind: str = "cpu"
    may_run_jax: ClassVar[bool] = True
    may_compute_on_cpu: ClassVar[bool] = True


@dataclass(kw_only=True)
class GpuConfig(DeviceConfig):
    """One GPU."""

    kind: str = "gpu"
    may_run_jax: ClassVar[bool] = True
    may_compute_on_gpu: ClassVar[bool] = True


@dataclass(kw_only=True)
class MirroredConfig(DeviceConfig):
    """A copy of the model on each GPU, or on each of `virtual` CPU devices."""

    kind: str = "mirrored"
    may_run_jax: ClassVar[bool] = True
    may_compute_on_gpu: ClassVar[bool] = True
    may_compute_on_cpu: ClassVar[bool] = True


@dataclass(kw_only=True)
class MultiworkerConfig(DeviceConfig):
    """Several processes, on one machine or on many, that train one model."""

    kind: str = "multiworker"
    may_compute_on_gpu: ClassVar[bool] = True
    may_compute_on_cpu: ClassVar[bool] = True
    has_workers: ClassVar[bool] = True


@dataclass(kw_only=True)
class TpuConfig(DeviceConfig):
    """A TPU."""

    kind: str = "tpu"
    may_run_jax: ClassVar[bool] = True
    has_limit: ClassVar[bool] = False
    has_address: ClassVar[bool] = True


@dataclass(frozen=True)
class DeviceEntry(Entry[DeviceConfig]):
    """An entry of the devices.

    Attributes:
        before_tensorflow: "module:function" that checks for the device before TensorFlow is imported.
        plan: "module:function" that runs job=plan for the device.
    """

    before_tensorflow: str | None = None
    plan: str = "accumtrain.measure.plan:plan_by_probes"


DEVICES: Registry[DeviceEntry] = Registry("device.kind")
DEVICES.add(
    DeviceEntry(AutoConfig, "accumtrain.devices.resolve:resolve_best_device"),
    DeviceEntry(CpuConfig, "accumtrain.devices.local:resolve_cpu"),
    DeviceEntry(GpuConfig, "accumtrain.devices.local:resolve_gpu"),
    DeviceEntry(MirroredConfig, "accumtrain.devices.local:resolve_mirrored"),
    DeviceEntry(MultiworkerConfig, "accumtrain.devices.multiworker:resolve_multiworker"),
    DeviceEntry(
        TpuConfig,
        "accumtrain.devices.local:resolve_tpu",
        before_tensorflow="accumtrain.process.tpu_runtime:check",
        plan="accumtrain.measure.tpu.plan:plan_by_compiler",
    ),
)
