"""Memory and numbers of transformers. Each subcommand prints a Markdown table.

    .venv/bin/python benchmarks/transformers.py depth     # peaks of 6 to 48 blocks: stored, recomputed, reversed
    .venv/bin/python benchmarks/transformers.py batch     # what a further image, text or token takes
    .venv/bin/python benchmarks/transformers.py time      # seconds of an update, by turns
    .venv/bin/python benchmarks/transformers.py range     # values of the streams in training, with 18 and 22 bits

A peak is that of a micro-step beyond the state, as in reversal.py: the median of three processes. It is exact on a busy
machine, too; `time` needs a quiet one. `depth` and `batch` take half an hour or more on two cores, the others minutes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from micro_step import Images, MicroStep, Peak, batch_of, peaks, spec_of, tf
from texts import Texts
from workbench import Table, by_rounds, compose, in_turn

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.config.schema import Config
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_train_batches
from accumtrain.models.build import build_model

POLICIES = {"store": "stored", "recompute": "recomputed", "reverse": "reversed"}
SIZE = ("model.width=128", "model.heads=4")
DEPTHS, BATCHES = (6, 12, 24, 48), (8, 16, 32)
DEPTH = 12  # of `batch` and `range`


class Family(NamedTuple):
    """Models of `overrides` and SIZE, the examples of a micro-step, and some of `more` tokens each."""

    overrides: tuple[str, ...]
    data: Images | Texts
    tokens: int
    longer: Images | Texts
    more: int


FAMILIES = {
    "revvit": Family(
        ("model=revvit_tiny", "model.patch=4", "model.pool=mean"),
        Images((32, 32, 3), 10),
        64,
        Images((64, 64, 3), 10),
        256,
    ),
    "revencoder": Family(("model=revencoder_tiny",), Texts(128, 256), 128, Texts(256, 256), 256),
    "revdecoder": Family(
        ("model=revdecoder_tiny",), Texts(128, 256, "next_token"), 128, Texts(256, 256, "next_token"), 256
    ),
}


def overrides_of(family: Family, policy: str, depth: int) -> list[str]:
    return [*family.overrides, *SIZE, f"model.depth={depth}", f"model.memory={policy}"]


# ---- peaks beyond the state ----


def find_peaks(family: Family, data: Images | Texts, policy: str, depth: int, batches: Sequence[int]) -> list[Peak]:
    """Return the peak of a micro-step for each size of a batch."""
    return peaks(data, list(batches), *overrides_of(family, policy, depth))


def show_depth() -> None:
    print(f"MB at the peak of a micro-step of {BATCHES[0]} examples beyond the state; in brackets what was asked for\n")
    table = Table("model", "blocks", *POLICIES.values(), "stored / reversed")
    for name, family in FAMILIES.items():
        for depth in DEPTHS:
            found = {policy: find_peaks(family, family.data, policy, depth, BATCHES[:1])[0] for policy in POLICIES}
            handed_out, asked = (a / b for a, b in zip(found["store"], found["reverse"], strict=True))
            table.row(name, depth, *map(in_mb, found.values()), f"{handed_out:.1f} ({asked:.1f})")


def show_batch() -> None:
    print(f"{DEPTH} blocks; MB at the peak of a micro-step beyond the state; in brackets what was asked for.")
    print("Further examples and tokens: KB asked for. The tokens are those of longer examples.\n")
    sizes = [f"batch {batch}" for batch in BATCHES]
    table = Table("model", "activations", *sizes, "by a further example", "by a further token", "by one of a longer")
    for name, family in FAMILIES.items():
        for policy, word in POLICIES.items():
            found = find_peaks(family, family.data, policy, DEPTH, BATCHES)
            (longer,) = find_peaks(family, family.longer, policy, DEPTH, BATCHES[:1])
            example = (found[-1].asked - found[0].asked) / (BATCHES[-1] - BATCHES[0])
            token = (longer.asked - found[0].asked) / (BATCHES[0] * (family.more - family.tokens))
            in_kb = (f"{1024 * mb:.2f}" for mb in (example, example / family.tokens, token))
            table.row(name, word, *map(in_mb, found), *in_kb)


def in_mb(peak: Peak) -> str:
    return f"{peak.handed_out:.2f} ({peak.asked:.2f})"


# ---- time ----

ROUNDS = 15


def show_time() -> None:
    batch = BATCHES[-1]
    print(f"{DEPTH} blocks; seconds of an update of {batch} examples: medians of {ROUNDS} rounds. Ratios: by rounds.\n")
    table = Table("model", *POLICIES.values(), "recomputed / stored", "reversed / stored")
    for name, family in FAMILIES.items():
        turns = {}
        for policy in POLICIES:
            run = MicroStep(compose("optim=adafactor", *overrides_of(family, policy, DEPTH)), family.data)
            turns[policy] = partial(run.update, batch, 1)
        in_turn(turns, 1)  # traces
        taken = {policy: [each.seconds for each in found] for policy, found in in_turn(turns, ROUNDS).items()}
        ratios = (f"{by_rounds(taken[policy], taken['store']):.2f}" for policy in ("recompute", "reverse"))
        table.row(name, *(f"{statistics.median(seconds):.3f}" for seconds in taken.values()), *ratios)


# ---- values of the streams ----

RATES, BITS = (1e-3, 4e-3), (0, 18, 22)
UPDATES, TRAINED_BATCH = 300, 64
LOOKS = 10  # updates from one look at the streams to the next
DIGITS = Images((8, 8, 1), 10)
TRAINED: dict[str, tuple[tuple[str, ...], Images | Texts]] = {
    "revvit": (("model=revvit_tiny", "model.patch=2", "model.pool=mean"), DIGITS),
    "revencoder": (("model=revencoder_tiny",), Texts(32, 256)),
}


def show_range() -> None:
    """Show loss, values of the streams, and the error of the gradient, for each number of bits and rate."""
    print(f"{DEPTH} blocks, Adam, {UPDATES} updates of {TRAINED_BATCH} digits or texts; 0 bits: streams of floats\n")
    table = Table("model", "rate", "snap_bits", "loss", "largest value", "share of the limit", "error of the gradient")
    for name in TRAINED:
        for rate in RATES:
            for bits in BITS:
                loss, reach, error = train(name, rate, bits)
                streams = (f"{reach * 2 ** (30 - bits):.1f}", f"{reach:.1%}") if bits else ("-", "-")
                table.row(name, rate, bits, f"{loss:.4f}", *streams, f"{error:.1e}")


def training_config(name: str, rate: float, bits: int) -> Config:
    overrides, _ = TRAINED[name]
    model = (*overrides, *SIZE, f"model.depth={DEPTH}", f"model.snap_bits={bits}")
    return compose(*model, "optim=adam", f"optim.lr={rate}", "schedule=constant")


def train(name: str, rate: float, bits: int) -> tuple[float, float, float]:
    """Train. Return the mean loss of the last updates, the largest reach, and the error of the last gradient."""
    _, data = TRAINED[name]
    run, batches = MicroStep(training_config(name, rate, bits), data), training_batches(data)
    reach = reach_of(run.window.model)
    looked_at = next(batches)
    losses, reached = list[float](), 0.0
    for update in range(UPDATES):
        losses.append(float(run.update_on(batches)["loss"]))
        if (update + 1) % LOOKS == 0:
            reached = max([reached, *(float(value) for value in reach(looked_at["inputs"]))])
    exact = build_model(training_config(name, rate, 0).model, spec_of(data, "float64"))
    error = gradient_error(run.window.model, exact, looked_at)
    return sum(losses[-LOOKS:]) / LOOKS, reached, error


def training_batches(data: Images | Texts) -> Iterator:
    """Return endless batches of the handwritten digits, or of texts."""
    if isinstance(data, Images):
        digits = open_data(compose("data=digits").data, 0)
        return iter(make_train_batches(digits, batch=TRAINED_BATCH, first=0, seed=0))
    texts = tf.data.Dataset.from_tensor_slices(batch_of(data, 64 * TRAINED_BATCH))
    return iter(texts.batch(TRAINED_BATCH, drop_remainder=True).repeat())


def reach_of(model: Model) -> Any:
    """Return the function from inputs to the reach of the streams in training, a share of their limit."""

    @tf.function(autograph=False)
    def reach(inputs: tf.Tensor) -> list[tf.Tensor]:
        mode = Mode(training=True)
        model(inputs, mode)
        return mode.reach

    return reach


def gradient_error(model: Model, exact: Model, batch: Any) -> float:
    """Return the norm of the difference to the gradient of `exact` with the same weights, over the norm of that."""
    from gradient_error import gradient_of, norm  # it imports TensorFlow, after which micro_step could settle nothing

    for variable, value in zip(exact.variables, model.variables, strict=True):
        variable.assign(tf.cast(value, variable.dtype))
    found, right = (gradient_of(each, batch["targets"])(batch["inputs"]) for each in (model, exact))
    return norm([a - b for a, b in zip(found, right, strict=True)]) / norm(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest="table", required=True)
    for name, show in (("depth", show_depth), ("batch", show_batch), ("time", show_time), ("range", show_range)):
        tables.add_parser(name).set_defaults(show=show)
    parser.parse_args().show()


if __name__ == "__main__":
    main()
