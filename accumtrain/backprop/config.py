"""The numbers of reversible streams, which the keys of models and the arguments of layers have in common."""

from __future__ import annotations

SNAP_BITS = 22  # behind the binary point, by default: as fine as float32 from 2 on, and a limit of 256
MOST_SNAP_BITS = 26  # with 27 the limit would be 8, and the streams of a new network reach 10 to 15
