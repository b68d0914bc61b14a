"""Names of TPU topologies, and the memory of their devices."""

from __future__ import annotations

import re

from accumtrain.errors import ConfigError
from accumtrain.kinds.values import suggest

# GiB of HBM that one device addresses, from "System architecture" of each version in the Cloud TPU documentation:
# per chip 16, 32, 32, 16, 95 and 32. A chip of v2 and v3 has two devices; v4 and v5p join two cores into one device.
HBM = {"v2": 8, "v3": 16, "v4": 32, "v5e": 16, "v5p": 95, "v6e": 32}
TOPOLOGY = re.compile(r"(?P<generation>\w+):[1-9]\d*(x[1-9]\d*){1,2}")


def check_topology(topology: str) -> None:
    """Raises ConfigError unless `topology` is a known generation and its chips in two or three dimensions."""
    match = TOPOLOGY.fullmatch(topology)
    if match is None:
        raise ConfigError(
            f"device.tpu_topology={topology}: must be a generation and its chips along each axis, for example v5e:2x2"
        )
    generation = match["generation"]
    if generation not in HBM:
        known = [topology.replace(generation, each, 1) for each in HBM]
        raise ConfigError(f"device.tpu_topology={topology}: no such generation; {suggest(topology, known)}")


def hbm_bytes(topology: str) -> int:
    """Bytes of memory of one device of a topology that has passed `check_topology`."""
    return HBM[topology.partition(":")[0]] * 2**30
