"""The packages of JAX that are installed, and those that this machine lacks. Only `import_jax` imports it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from accumtrain.errors import ConfigError, first_line
from accumtrain.process.cuda import INSTALL_JAX, JAX_PLUGINS, shows_gpu
from accumtrain.process.tpu_runtime import INSTALL_JAX_TPU, shows_tpu

PACKAGES = ("jax", *JAX_PLUGINS, "libtpu")
INSTALL = "pip install 'accumtrain[jax]'"
OLDEST_PYTHON = (3, 11)


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
    """Import JAX. Raise ConfigError if that fails, or if JAX may not compile."""
    try:
        import jax
    except Exception as error:  # a package that is damaged, or does not fit another, may raise anything
        raise ConfigError(
            f"JAX is installed and can't be imported ({type(error).__name__}: {first_line(error)}); mend that, or "
            f"install it anew: pip uninstall jax jaxlib, then {INSTALL_JAX if shows_gpu() else INSTALL}"
        ) from error
    if jax.config.jax_disable_jit:
        raise ConfigError("JAX_DISABLE_JIT is set: JAX then compiles no programs, and accumtrain needs them; unset it")
