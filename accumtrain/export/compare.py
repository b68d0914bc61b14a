"""The comparison of an export with the run: a process without accumtrain loads the file, and answers some samples."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from accumtrain.console import escape_lines
from accumtrain.errors import VerificationError
from accumtrain.export.formats import SERVING, Exported
from accumtrain.process.temporary_folder import temporary_folder

PROGRAM = Path(__file__).with_name("reload.py")


def largest_difference(exported: Exported, path: Path) -> float:
    """Return the largest difference of an answer between the file and the run, over all samples.

    Raises:
        VerificationError: another process can't load the file, or not as it was written; or another signature of it
            tells something else than the run.
    """
    further = list(exported.answer.further) if path.is_dir() else []  # a SavedModel alone has signatures
    samples = {f"sample_{number}": sample for number, sample in enumerate(exported.inputs.samples())}
    with temporary_folder("export") as folder:
        inputs, outputs = folder / "inputs.npz", folder / "outputs.npz"
        np.savez(inputs, allow_pickle=False, **samples)
        command = [sys.executable, str(PROGRAM), str(path.absolute()), str(inputs), str(outputs), *further]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",  # this process holds the memory of GPUs
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(escape_lines(done.stderr[-2000:]))
            raise VerificationError("a clean process could not use what was written; the lines above are what it said")
        with np.load(outputs) as answers:
            if answers["class_names"].tolist() != exported.answer.columns:
                raise VerificationError("the class names in what was written are not those of the run")
            for signature in further:
                for name, batch in samples.items():
                    if not np.array_equal(answers[f"{signature}_{name}"], _compute(exported, batch, signature)):
                        raise VerificationError(
                            f"the signature {signature} of what was written tells something else than the run; "
                            "nothing is kept: choose another format"
                        )
            differences = [
                np.abs((answers[name] - _compute(exported, batch)) / exported.answer.unit).max()
                for name, batch in samples.items()
            ]
            return float(np.max(differences))  # NaN if one is: Python's max may drop it


def _compute(exported: Exported, sample: np.ndarray, signature: str = SERVING) -> np.ndarray:
    """Return what the run has for the output of a signature, [N, ...], for a sample of inputs, as in an evaluation."""
    output: np.ndarray = exported.compute(exported.inputs.prepare(sample), signature).numpy()
    return output
