"""Nats per byte of decoders of a dictionary and a book, by bytes and by a BPE, beside PyTorch's (half an hour).

    .venv/bin/python benchmarks/language_models.py --peer-python PYTHON    # one that has torch

The recipe text_lm, with fewer updates, trains the ordinary decoder and the reversible one. PyTorch trains the ordinary
one from the same first weights, on the same packed rows in the same order, at the same rates. Nats are of test texts
after the last update; 200 kB of texts, drawn at random, are these. The BPE of 4,096 tokens is learned from the others.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import tensorflow as tf
from debian_texts import TEXTS, fetch_texts, write_texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from workbench import Table, call, compose

from accumtrain.config.schema import Config
from accumtrain.data.pipeline import make_train_batches
from accumtrain.data.text.rows import RowSplit
from accumtrain.models.transformers.config import DecoderConfig
from accumtrain.optim.config import AdamWConfig
from accumtrain.runs.contents import read_summary
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import model_for

PEER = Path(__file__).parent / "peers/torch_decoder.py"
TEST_BYTES, TOKENS = 200_000, 4096
END = "<|endoftext|>"
RECIPE = ("experiment=text_lm", "batch_size=16", "accum.steps=1", "train.steps=300", "schedule.warmup=30")
AT_THE_END = ("eval.every=1000000", "data.val_fraction=0.01")  # nothing is chosen on what validates


def write_splits(name: str, folder: Path) -> list[str]:
    """Write a table of training texts and one of test texts. Return the training texts."""
    texts = fetch_texts(name)
    random.Random(0).shuffle(texts)
    ends = np.cumsum([len(text.encode()) for text in texts])
    held_out = int(np.searchsorted(ends, TEST_BYTES))
    write_texts(texts[:held_out], folder / "test.jsonl")
    write_texts(texts[held_out:], folder / "train.jsonl")
    return texts[held_out:]


def train_tokenizer(texts: list[str], file: Path) -> None:
    """Write a BPE of bytes, and of a token at the end of texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=TOKENS, special_tokens=[END], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(file))


def train(folder: Path, *overrides: str) -> float:
    """Return the nats per byte of a run of ours."""
    code, run = call(folder, *overrides)
    summary = read_summary(run)
    if code or summary is None:
        raise SystemExit(f"accumtrain {' '.join(overrides)} ended with {code}")
    return math.log(2) * summary["test"]["bits_per_byte"]


def train_peer(python: str, config: Config, file: Path) -> float:
    """Return the nats per byte of PyTorch, which is given all that a run of `config` learns from."""
    write_run(config, file)
    answer = subprocess.run([python, PEER, file], check=True, capture_output=True, text=True).stdout
    return json.loads(answer)["nats_per_byte"]


def write_run(config: Config, file: Path) -> None:
    """Write the first weights of a run, the rows of each update, its rate, and the rows to test on."""
    assert isinstance(config.model, DecoderConfig)
    assert isinstance(config.optim, AdamWConfig)
    assert config.train.steps is not None, "the recipe says it"
    objective = open_objective(config)
    test = objective.stored.splits["test"]
    assert isinstance(test, RowSplit), "texts in a row"
    weights = [variable.numpy() for variable in model_for(config, objective.stored).variables]
    batches = iter(make_train_batches(objective.stored, batch=config.batch_size, first=0, seed=config.run.seed))
    factors = config.schedule.build(config.train.steps)(tf.range(config.train.steps))
    settings = {
        "depth": config.model.depth,
        "heads": config.model.heads,
        "hidden": config.model.hidden,
        "weights": len(weights),
        "weight_decay": config.optim.weight_decay,
        "beta1": config.optim.beta1,
        "beta2": config.optim.beta2,
        "epsilon": config.optim.epsilon,
        "clip_norm": config.optim.clip_norm,
        "test_bytes": test.bytes_told,
    }
    np.savez(
        file,
        settings=json.dumps(settings),
        batches=np.stack([batch["targets"].numpy() for batch in islice(batches, config.train.steps)]),
        rates=config.optim.lr * factors.numpy(),
        test=test.tokens,
        **{f"weight{index}": value for index, value in enumerate(weights)},
    )


def list_cases(scratch: Path) -> Iterator[tuple[str, str, Path, tuple[str, ...]]]:
    """Yield texts, the name of their tokens, a folder and the overrides of both."""
    for name in TEXTS:
        folder = scratch / name
        folder.mkdir()
        train_tokenizer(write_splits(name, folder), folder / "tokenizer.json")
        tables = (f"data.path={folder / 'train.jsonl'}", f"data.test_path={folder / 'test.jsonl'}")
        for tokens, tokenizer in (("bytes", "bytes"), ("BPE", str(folder / "tokenizer.json"))):
            yield name, tokens, folder / tokens, (*RECIPE, *AT_THE_END, *tables, f"data.tokenizer={tokenizer}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True)
    python = parser.parse_args().peer_python
    ordinary = ("model=decoder_tiny",)
    table = Table("texts", "tokens", "decoder", "the same in PyTorch", "ratio", "reversible decoder")
    with tempfile.TemporaryDirectory() as scratch:
        for name, tokens, folder, overrides in list_cases(Path(scratch)):
            ours = train(folder / "ordinary", *overrides, *ordinary)
            theirs = train_peer(python, compose(*overrides, *ordinary), folder / "run.npz")
            reversible = train(folder / "reversible", *overrides)
            table.row(name, tokens, f"{ours:.4f}", f"{theirs:.4f}", f"{ours / theirs:.4f}", f"{reversible:.4f}")


if __name__ == "__main__":
    main()
