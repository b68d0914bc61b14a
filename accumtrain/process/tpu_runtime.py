"""Check for a TPU before TensorFlow is imported, as a libtpu of another version crashes TensorFlow."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from accumtrain.errors import ConfigError
from accumtrain.fields import JAX

if TYPE_CHECKING:
    from accumtrain.devices.config import DeviceConfig

INSTALL_JAX_TPU = "pip install 'accumtrain[jax-tpu]'"
LOCAL = "local"
PATIENCE = 18  # seconds; a TPU that is there answers sooner
CONNECT = """
import sys
import tensorflow as tf
if sys.argv[1] != "local":
    tf.config.experimental_connect_to_cluster(tf.distribute.cluster_resolver.TPUClusterResolver(tpu=sys.argv[1]))
"""


def explain_missing_tpu() -> str | None:
    """Return what this machine lacks for a TPU of its own, with the remedy; None if nothing is missing."""
    if not _has_library():
        return "no TPU runtime (libtpu) is installed here; run `make tpu` on a Cloud TPU VM"
    if not _chips():
        return (
            "libtpu is installed, but this machine has no TPU chip (no /dev/accel0, no /dev/vfio/0); run on a Cloud "
            "TPU VM"
        )
    return None


def shows_tpu() -> bool:
    """Return whether this machine has a TPU chip."""
    return bool(_chips())


def check(device: DeviceConfig) -> None:
    """Raise ConfigError if the TPU at device.tpu (null: this machine's) can't be used from here."""
    if device.runtime == JAX:
        _check_for_jax(device)
        return
    address = device.tpu or LOCAL
    if address == LOCAL and (missing := explain_missing_tpu()):
        raise ConfigError(f"device=tpu: {missing}, or name a TPU with device.tpu=<name or address>")
    _try_in_a_child(address)


def _check_for_jax(device: DeviceConfig) -> None:
    if device.tpu not in (None, LOCAL):
        raise ConfigError(
            f"device.tpu={device.tpu}: device.runtime=jax computes on this machine's TPU; leave device.tpu out"
        )
    if not _has_library():
        raise ConfigError(
            "device=tpu device.runtime=jax: JAX's package for TPUs (libtpu) is not installed; "
            f"{INSTALL_JAX_TPU}, on a Cloud TPU VM"
        )
    if missing := explain_missing_tpu():
        raise ConfigError(f"device=tpu device.runtime=jax: {missing}")


def quiet_environment() -> dict[str, str]:
    """Return variables that keep libtpu, without a chip, from waiting minutes for Google's metadata server."""
    return {} if _chips() or not _has_library() else {"TPU_SKIP_MDS_QUERY": "1"}


def _try_in_a_child(address: str) -> None:
    """Connect to the TPU in a child process, which an incompatible libtpu crashes."""
    command = [sys.executable, "-c", CONNECT, address]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"device=tpu: device.tpu={address} did not answer within {PATIENCE} s; check its name and that it runs"
        ) from error
    if child.returncode < 0:
        raise ConfigError(
            f"device=tpu: TensorFlow crashes with the libtpu {_version('libtpu')} that is installed here; "
            "`make tpu RUNTIME=tensorflow` installs one that works with it"
        )
    if child.returncode > 0:
        reason = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(
            f"device=tpu: no TPU answers at device.tpu={address}: {reason}; check its name and that it runs"
        )


def _has_library() -> bool:
    return importlib.util.find_spec("libtpu") is not None


def _chips() -> list[Path]:
    return [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"
