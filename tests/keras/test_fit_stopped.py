"""A program with accumtrain.fit that gets a SIGTERM, and is started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

PROGRAM = """
import sys
import keras, numpy as np
import accumtrain
from accumtrain.errors import Preempted

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)], name="net")
model.compile("adam", "mse")
x = np.random.default_rng(0).normal(size=(64, 6))
settings = {"train.steps": int(sys.argv[2]), "log.every": 1, "checkpoint.every": 1000000, "eval.every": 1000000}
try:
    accumtrain.fit(model, (x, x[:, :1]), batch_size=16, steps=2, run_name=sys.argv[1], settings=settings)
except Preempted as stop:
    sys.exit(stop.exit_code)
np.savez(sys.argv[1], *model.get_weights())
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_a_stopped_program_continues_with_the_same_bits(tmp_path: Path) -> None:
    metrics = tmp_path / "runs" / "stopped" / "metrics.jsonl"
    stopped = start(tmp_path, "stopped", "1000000")
    try:
        while not (metrics.exists() and metrics.read_text().count("\n") > 3) and stopped.poll() is None:
            time.sleep(0.05)
        stopped.send_signal(signal.SIGTERM)
        _, errors = stopped.communicate(timeout=120)
    finally:
        stopped.kill()
    assert stopped.returncode == 75, errors.decode()[-2000:]
    done = json.loads((tmp_path / "runs" / "stopped" / "summary.json").read_text())["step"]
    for name in ("stopped", "whole"):
        with start(tmp_path, name, str(done + 5)) as again:
            _, errors = again.communicate(timeout=120)
        assert again.returncode == 0, errors.decode()[-2000:]
    parts, whole = (np.load(tmp_path / f"{name}.npz") for name in ("stopped", "whole"))
    assert whole.files == parts.files
    assert all(np.array_equal(whole[name], parts[name]) for name in whole.files)
