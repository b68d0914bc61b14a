"""Writes adafactor_peers.npz, weights after 30 updates of other Adafactors, where PEERS are installed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FILE = Path(__file__).with_suffix(".npz")
PEERS = ("jax", "optax", "torch", "transformers")
UPDATES = 30
SHAPES = [(5,), (6, 4), (6, 4, 5), (3, 5, 2, 4)]  # the largest axes are not always the last ones


class Case(NamedTuple):
    """Arguments of the peer's class, and those of accumtrain's on top of a preset."""

    peer: str
    theirs: dict[str, Any]
    preset: str
    ours: dict[str, Any]


CASES = {
    "optax default": Case("optax", {"learning_rate": 1e-2}, "optax", {"learning_rate": 1e-2}),
    "optax factored": Case(
        "optax",
        {"learning_rate": 1e-2, "min_dim_size_to_factor": 4, "momentum": 0.9, "weight_decay_rate": 1e-3},
        "optax",
        {"learning_rate": 1e-2, "min_dim_size_to_factor": 4, "momentum": 0.9, "weight_decay": 1e-3},
    ),
    "optax in part factored": Case(
        "optax",
        {
            "learning_rate": 1e-2,
            "min_dim_size_to_factor": 5,
            "clipping_threshold": None,
            "multiply_by_parameter_scale": False,
            "decay_rate": 0.7,
        },
        "optax",
        {
            "learning_rate": 1e-2,
            "min_dim_size_to_factor": 5,
            "clip_threshold": None,
            "scale_parameter": False,
            "decay_exponent": 0.7,
        },
    ),
    "optax without a rate": Case("optax", {}, "optax", {"learning_rate": 1.0}),
    "huggingface default": Case("huggingface", {}, "huggingface", {}),
    "huggingface momentum and decay": Case(
        "huggingface",
        {"lr": 1e-2, "relative_step": False, "beta1": 0.9, "weight_decay": 0.1, "clip_threshold": 0.5},
        "huggingface",
        {"learning_rate": 1e-2, "momentum": 0.9, "weight_decay": 0.1, "clip_threshold": 0.5},
    ),
    "huggingface unscaled": Case(
        "huggingface",
        {"lr": 1e-2, "relative_step": False, "scale_parameter": False, "weight_decay": 0.1},
        "huggingface",
        {"learning_rate": 1e-2, "scale_parameter": False, "weight_decay": 0.1},
    ),
    "huggingface relative step unscaled": Case(
        "huggingface", {"scale_parameter": False}, "huggingface", {"scale_parameter": False}
    ),
    "huggingface warmup": Case("huggingface", {"warmup_init": True}, "huggingface", {"warmup_init": True}),
    "torch": Case("torch", {"lr": 1e-2, "eps": (1e-30, 1e-3)}, "paper", {"learning_rate": 1e-2}),
}


def weights() -> list[np.ndarray]:
    """Float64 numbers between -1 and 1, without a random generator, so that all versions of NumPy agree."""
    return [_numbers(shape, 0.1 + place) for place, shape in enumerate(SHAPES)]


def gradients(update: int) -> list[np.ndarray]:
    """Those of update number `update`, from 0 on; their size changes from one to the next."""
    size = 10.0 ** np.cos(update)
    return [size * _numbers(shape, 10.0 + place + 17.0 * update) for place, shape in enumerate(SHAPES)]


def _numbers(shape: Sequence[int], start: float) -> np.ndarray:
    return np.sin(1e3 * np.sin(start + np.arange(np.prod(shape), dtype=np.float64))).reshape(shape)


def by_optax(arguments: dict[str, Any]) -> list[np.ndarray]:
    import jax
    import optax

    jax.config.update("jax_enable_x64", True)
    rule = optax.adafactor(**arguments, dtype_momentum=np.float64)
    values = [jax.numpy.asarray(weight) for weight in weights()]
    state = rule.init(values)
    for update in range(UPDATES):
        changes, state = rule.update([jax.numpy.asarray(each) for each in gradients(update)], state, values)
        values = optax.apply_updates(values, changes)
    return [np.asarray(value) for value in values]


def by_pytorch(kind: type, arguments: dict[str, Any]) -> list[np.ndarray]:
    import torch

    values = [torch.nn.Parameter(torch.tensor(weight)) for weight in weights()]
    rule = kind(values, **arguments)
    for update in range(UPDATES):
        for value, gradient in zip(values, gradients(update), strict=True):
            value.grad = torch.tensor(gradient)
        rule.step()
    return [value.detach().numpy() for value in values]


def trained(case: Case) -> list[np.ndarray]:
    """The weights after all updates."""
    if case.peer == "optax":
        return by_optax(case.theirs)
    if case.peer == "torch":
        from torch.optim import Adafactor
    else:
        from transformers.optimization import Adafactor
    return by_pytorch(Adafactor, case.theirs)


def main() -> None:
    arrays = {name: np.concatenate([each.ravel() for each in trained(case)]) for name, case in CASES.items()}
    arrays["versions"] = np.array([f"{name} {importlib.metadata.version(name)}" for name in PEERS])
    np.savez_compressed(FILE, allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
