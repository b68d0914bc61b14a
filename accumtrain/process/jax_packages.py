"""The packages of JAX that are installed, and those that this machine lacks. Only `import_jax` imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from accumtrain.errors import ConfigError, first_line
from accumtrain.fields import shorten
from accumtrain.process.cuda import INSTALL_JAX, JAX_PLUGINS, shows_gpu
from accumtrain.process.tpu_runtime import INSTALL_JAX_TPU, shows_tpu

PACKAGES = ("jax", *JAX_PLUGINS, "libtpu")
INSTALL = "pip install 'accumtrain[jax]'"
OLDEST_PYTHON = (3, 11)


XLA_FLAGS = "XLA_FLAGS"
BY_JAX = "import jax; jax.devices('cpu')"  # programs that read the flags of XLA
BY_TENSORFLOW = "import tensorflow as tf; tf.function(tf.identity, jit_compile=True)(0.0)"
REFUSED = {  # settings of JAX, which variables of these names set, and what they do
    "jax_disable_jit": "compiles no programs, and accumtrain needs them",
    "jax_debug_nans": "ends a run at a NaN, and accumtrain looks for these itself (run.on_nonfinite)",
    "jax_debug_infs": "ends a run at an infinite value, and accumtrain looks for these itself (run.on_nonfinite)",
}


def check_xla_flags(program: str) -> None:
    """Raise ConfigError if XLA does not read the flags of the environment, as it would end this process then.

    Args:
        program: BY_JAX or BY_TENSORFLOW. It is run by a process of its own, if there are any flags.
    """
    flags = os.environ.get(XLA_FLAGS)
    if not flags:
        return
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode and XLA_FLAGS in done.stderr:
        said = next(line for line in done.stderr.splitlines() if XLA_FLAGS in line).partition("] ")[2]
        raise ConfigError(f"{XLA_FLAGS}={shorten(flags)}: XLA refuses it ({said}); unset it, or correct it")


def jax_packages() -> dict[str, str]:
    """Return the versions of JAX and of what it needs for GPUs and TPUs, of those that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def explain_missing_packages(packages: Mapping[str, str]) -> str | None:
    """Return what this machine lacks for device.runtime=jax, with the remedy; None if nothing is missing."""
    if sys.version_info < OLDEST_PYTHON:
        oldest, here = (".".join(map(str, numbers[:2])) for numbers in (OLDEST_PYTHON, sys.version_info))
        return f"JAX needs Python {oldest} or newer, and this is {here}: make an environment with a newer one"
    if shows_gpu() and not packages.keys() & set(JAX_PLUGINS):
        return f"JAX's packages for NVIDIA GPUs are not installed: {INSTALL_JAX}"
    if shows_tpu() and "libtpu" not in packages:
        return f"JAX's package for TPUs is not installed: {INSTALL_JAX_TPU}"
    return None if "jax" in packages else f"JAX is not installed: {INSTALL}"


def import_jax() -> None:
    """Import JAX. Raise ConfigError if that fails, or by a variable of the environment with which a run would."""
    if "jax" not in sys.modules:
        check_xla_flags(BY_JAX)
    try:
        import jax
    except Exception as error:  # a package that is damaged, or does not fit another, may raise anything
        raise ConfigError(
            f"JAX is installed and can't be imported ({type(error).__name__}: {first_line(error)}); mend that, or "
            f"install it anew: pip uninstall jax jaxlib, then {INSTALL_JAX if shows_gpu() else INSTALL}"
        ) from error
    for setting, effect in REFUSED.items():
        if getattr(jax.config, setting):
            raise ConfigError(f"{setting.upper()} is set: JAX then {effect}; unset it")
