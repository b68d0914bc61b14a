"""Whether a written export computes what the run does: it is loaded by a process without accumtrain, and compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.console import visible_lines
from accumtrain.engine.predictor import probabilities
from accumtrain.errors import VerificationError
from accumtrain.exports.formats import Exported
from accumtrain.process.temporary_folder import temporary_folder

PROGRAM = Path(__file__).with_name("reload.py")
NUMBER = 4  # images of each size
SIZES = ((1.0, 1.0), (1.7, 2.3), (0.5, 0.6))  # in shares of what the model takes
COARSE, NOISE = 4, 30  # the images are patches in a grid of this many, under noise


def largest_difference(exported: Exported, path: Path) -> float:
    """The largest difference of a probability, over images of several sizes, between the file and job=predict.

    Raises:
        VerificationError: another process can't load the file, or not as it was written.
    """
    images = {f"size_{place}": _images(exported.shape, size) for place, size in enumerate(SIZES)}
    with temporary_folder("export") as folder:
        inputs, outputs = folder / "inputs.npz", folder / "outputs.npz"
        np.savez(inputs, allow_pickle=False, **images)
        command = [sys.executable, str(PROGRAM), str(path.absolute()), str(inputs), str(outputs)]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",  # this process holds the memory of GPUs
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(visible_lines(done.stderr[-2000:]))
            raise VerificationError("a clean process could not use what was written; the lines above are what it said")
        with np.load(outputs) as answers:
            if answers["class_names"].tolist() != exported.class_names:
                raise VerificationError("the class names in what was written are not those of the run")
            differences = [np.abs(answers[name] - _own(exported, each)).max() for name, each in images.items()]
            return float(np.max(differences))  # which is NaN if one is, as Python's max may not be


def _own(exported: Exported, images: np.ndarray) -> np.ndarray:
    """The probabilities, float32 [N, classes], of uint8 images [N, H, W, C], prepared as those of an evaluation."""
    key = tf.zeros([], tf.uint64)
    prepare = exported.preprocess
    examples = [prepare.example(tf.constant(each), key, channels=each.shape[-1], training=False) for each in images]
    batch = prepare.batch(tf.stack(examples), tf.fill([len(images)], key), training=False)
    return probabilities(exported.model, batch).numpy()


def _images(shape: tuple[int, ...], size: tuple[float, float]) -> np.ndarray:
    """Images, uint8 [N, height, width, channels], that are the same in every call."""
    random = np.random.default_rng(0)
    height, width = (max(1, round(side * share)) for side, share in zip(shape, size, strict=False))
    patches = random.integers(0, 256, [NUMBER, COARSE, COARSE, shape[-1]])
    rows, columns = (np.arange(side) * COARSE // side for side in (height, width))
    noise = random.integers(-NOISE, NOISE + 1, [NUMBER, height, width, shape[-1]])
    return np.clip(patches[:, rows][:, :, columns] + noise, 0, 255).astype(np.uint8)
