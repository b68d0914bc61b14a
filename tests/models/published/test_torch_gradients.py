"""The gradient of fine-tuning beside PyTorch's autograd in float64: of all tensors, and of PEFT's adapters.

PEERS names a Python that has torch, transformers and peft; without it they must be here.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.models.published.folders import CLASSES, DECODERS, write_folder
from tests.models.published.loaded import draw_batch, gradients_of, load_model

PEERS = "ACCUMTRAIN_PEERS_PYTHON"
SCRIPT, ROOT = Path(__file__).with_name("write_gradients.py"), Path(__file__).parents[3]
RANK, ALPHA = 4, 6.0
FAMILIES = ("bert", "roberta", "distilbert", *DECODERS)
KINDS = {"full": {}, "lora": {"lora_rank": RANK, "lora_alpha": ALPHA}}
ZERO = ("key.bias", "k_lin.bias")  # softmax takes no notice of what is added to all scores of a query

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PEERS not in os.environ and not all(map(find_spec, ("torch", "transformers", "peft"))),
        reason=f"needs torch, transformers and peft, here or in the Python that {PEERS} names",
    ),
]


def load_adapted(folder, **keys):
    """The model of a folder; its adapters are those of a training."""
    model, started = load_model(folder, **keys)
    assert set(started.left) == model.added
    random = np.random.default_rng(3)
    for layer in model.adapted:
        for kernel in layer.kernels:
            kernel.assign(random.normal(size=kernel.shape, scale=0.3))
    return model


def in_file(model, arrays):
    """The arrays of variables by the names of their tensors, in the form of the file."""
    tensors = model.tensors
    return {tensors[path].name: tensors[path].form.to_file(array) for path, array in arrays.items()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders with gradients.npz, by family and kind."""
    parent, found = tmp_path_factory.mktemp("folders"), {}
    for family in FAMILIES:
        for kind, keys in KINDS.items():
            folder = write_folder(parent / f"{family}-{kind}", family, head=CLASSES, dtype="float64")
            found[family, kind] = folder
            if keys:
                model = load_adapted(folder, **keys)
                adapters = {path: model.named[path].numpy() for path in model.added}
                np.savez(folder / "adapters.npz", **in_file(model, adapters))
    python = os.environ.get(PEERS, sys.executable)
    done = subprocess.run(
        [python, SCRIPT, parent, str(ALPHA)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return found


@pytest.mark.parametrize(("memory", "micro_steps"), [("store", 1), ("recompute", 2)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_autograd(folders, family, kind, memory, micro_steps):
    folder, batch = folders[family, kind], draw_batch(family)
    expected = dict(np.load(folder / "gradients.npz"))
    model = load_adapted(folder, memory=memory, **KINDS[kind])
    found = in_file(model, gradients_of(model, batch, micro_steps))
    assert found.keys() == expected.keys()
    assert any(name.endswith(ZERO) for name in expected) == (kind == "full" and family not in DECODERS)
    whole = np.linalg.norm([np.linalg.norm(gradient) for gradient in expected.values()])
    for name, gradient in expected.items():
        mean = found[name] / len(batch["targets"])
        assert mean.shape == gradient.shape, name
        norm = whole if name.endswith(ZERO) else np.linalg.norm(gradient)
        assert norm > 0, name
        assert np.linalg.norm(mean - gradient) < 1e-9 * norm, name
