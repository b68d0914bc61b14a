"""Saves the state of a small model in the folder argv[1] by TensorFlow, twice, and once more for each line on stdin.

Prints the number of the thread that writes; then for each line how the save has ended.
"""

import sys
import threading
from pathlib import Path

from accumtrain.errors import CheckpointError
from accumtrain.optim.config import SgdConfig
from accumtrain.train import checkpoint
from accumtrain.train.checkpoint import Checkpoints
from tests.engine.small import resnet20, window_for
from tests.manifests import FACTS

checkpoint.PATIENCE = float("inf")  # all is written by one thread
window = window_for(resnet20(units=(1, 1)), SgdConfig(lr=0.1), (8, 8, 1))


def save(checkpoints: Checkpoints) -> str:
    window.step.assign_add(1)
    try:
        checkpoints.save()
        checkpoints.wait()
    except CheckpointError as error:
        return str(error)
    return "saved"


with Checkpoints(Path(sys.argv[1]), window, keep=1, facts=FACTS.copy) as checkpoints:
    save(checkpoints)
    save(checkpoints)
    print(*[thread.native_id for thread in threading.enumerate() if thread.name.startswith("checkpoint")], flush=True)
    for _ in sys.stdin:
        print(save(checkpoints), flush=True)
