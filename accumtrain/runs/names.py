"""The name of a run: run.name, or a name derived from its command."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import PurePath

from accumtrain.config.declared_keys import records
from accumtrain.config.schema import Config

NOT_OF_A_RUN = ("log.", "bench.", "predict.", "export.", "range_test.", "hydra")  # beginnings of keys
LONGEST = 48  # characters of a derived name, without its hash
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
    return _name(base, {key: value for key, value in shown.items() if not _says(base, key, value)})


def _name(base: str, shown: Mapping[str, str]) -> str:
    """The base and a word for each key, as many as fit, and a hash if that does not tell all."""
    unique = _unique_names()
    words = [_word(unique.get(key, key), value) for key, value in shown.items()]
    name = _plain(base)[:LONGEST]
    fitting = 0
    while fitting < len(words) and len(name) + 1 + len(_plain(words[fitting])) <= LONGEST:
        name += f"-{_plain(words[fitting])}"
        fitting += 1
    exact = "-".join([base, *words])
    return name if name == exact else f"{name}-{_hash(exact)[:6]}"


def _word(key: str, value: str) -> str:
    """A key and its value in one word: seed3, batch_size64, augment_crop_flip, beta1_0.9."""
    return f"{key}{value}" if value[:1].isdigit() and not key[-1:].isdigit() else f"{key}_{value}"


def _says(base: str, key: str, value: str) -> bool:
    """Whether the base has the path to the data already, as that of a folder beside the runs."""
    path = PurePath(value)
    return key == "data.path" and len(path.parts) == 1 and base.endswith((f"-{value}", f"-{path.stem}"))


def _unique_names() -> dict[str, str]:
    """The last part of each dotted key that no other key ends with."""
    top = [each.name for each in fields(Config)]
    dotted = {f"{group}.{each.name}" for group, found in records().items() for cls in found for each in fields(cls)}
    last = Counter([*top, *(key.rpartition(".")[2] for key in dotted)])
    return {key: name for key in dotted if last[name := key.rpartition(".")[2]] == 1}


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text).strip("._-")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
