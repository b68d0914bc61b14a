"""The name of a run: run.name, or a name derived from its command."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from accumtrain.config.schema import Config

NOT_OF_A_RUN = ("log.", "bench.", "predict.", "export.", "range_test.", "hydra")  # beginnings of keys
LONGEST_NAME = 100  # characters of a derived name, without its hash
NOT_IN_NAMES = {
    *("job", "data.download", "report.runs", "device.workers", "device.index"),
    *("run.name", "run.dir", "run.resume", "run.walltime", "run.hang_timeout", "run.on_nonfinite", "run.max_nonfinite"),
}


def run_name(config: Config, overrides: Sequence[str]) -> str:
    """run.name, or a name derived from the command: the same command gives the same name.

    Args:
        overrides: the command's `key=value` arguments, those of this job in a sweep.
    """
    if config.run.name is not None:
        return config.run.name
    values = dict(override.lstrip("+~").partition("=")[::2] for override in overrides)
    base, in_base = f"{config.model.label}-{config.data.label}", {"model", "data", "model.name", "data.name"}
    if "experiment" in values:
        base, in_base = values["experiment"], {"experiment"}
    shown = {
        key: value
        for key, value in sorted(values.items())
        if key not in in_base | NOT_IN_NAMES and not key.startswith(NOT_OF_A_RUN)
    }
    exact = "-".join([base, *(f"{key}-{value}" for key, value in shown.items())])
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", exact).strip("._-")
    if name == exact and len(name) <= LONGEST_NAME:
        return name
    # two commands that shorten to the same name must not share a folder
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"
