"""Adds a checkpoint of update 2 to the store in the folder argv[1]. The calls in question come after the marker."""

import os
import sys
from pathlib import Path

from accumtrain.errors import CheckpointError
from accumtrain.runs.checkpoint_store import CheckpointStore
from tests.manifests import FACTS


def write(prefix: str) -> None:
    for name in ("index", "data-00000-of-00001"):
        Path(f"{prefix}.{name}").write_bytes(os.urandom(3000))


def read_back(prefix: str) -> None:
    for name in ("index", "data-00000-of-00001"):
        assert len(Path(f"{prefix}.{name}").read_bytes()) == 3000


store = CheckpointStore(Path(sys.argv[1]))
os.kill(os.getpid(), 0)  # the marker
try:
    store.write(2, write, read_back, FACTS)
    store.keep(lambda newest_first: newest_first[:1])
except CheckpointError as error:
    sys.exit(str(error))
