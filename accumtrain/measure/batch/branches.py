"""The branches: the configuration of each, and the name of its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from accumtrain.config.schema import Config
from accumtrain.measure.batch.beginning import Beginning
from accumtrain.measure.batch.check import count_steps, list_batches
from accumtrain.measure.batch.means import keep_half_lives
from accumtrain.measure.batch.names import digest_of
from accumtrain.optim.schedules import ConstantConfig
from accumtrain.runs.names import folder_of, replace_odd
from accumtrain.runs.run import FORCE
from accumtrain.train.config import NONE as NO_TRACKER

EVALUATIONS = 8  # of a branch
RECORDS = 4  # of updates, between two evaluations
POWERS = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}  # of the ratio of two batches, by batch_test.rule
LARGEST_SEED = 2**31


@dataclass(frozen=True)
class Branch:
    """A training from the beginning on, with a batch, a factor on the rate, and an order of the examples.

    Attributes:
        order: 0 for the order of the run.
        config: of the training, in a folder of its own.
    """

    batch: int
    factor: float
    order: int
    config: Config

    @property
    def name(self) -> str:
        assert self.config.run.name is not None
        return self.config.run.name

    @property
    def folder(self) -> Path:
        return folder_of(self.config)

    def updates_after(self, step: int) -> int:
        """Return the number of updates after the beginning, which has made `step`."""
        assert self.config.train.steps is not None
        return self.config.train.steps - step

    def examples_after(self, step: int) -> int:
        return self.updates_after(step) * self.batch


def list_branches(config: Config, beginning: Beginning, examples: int, folder: Path) -> list[Branch]:
    """Return all branches: for each batch each factor on the rate, with each order of the examples.

    Args:
        config: of the run, with accum.steps as a number.
        examples: of each branch.
        folder: of the job.
    """
    options = config.batch_test
    return [
        _make_branch(config, beginning, examples, folder, batch, factor, order)
        for batch in list_batches(config)
        for factor in options.rates
        for order in range(options.seeds)
    ]


def _make_branch(
    config: Config, beginning: Beginning, examples: int, folder: Path, batch: int, factor: float, order: int
) -> Branch:
    updates = -(-examples // batch)
    every = max(1, round(updates / EVALUATIONS))
    ratio = batch / beginning.batch
    own = config if ratio == 1 else keep_half_lives(config, beginning.batch, beginning.told)
    rate = None if beginning.rate is None else beginning.rate * factor * ratio ** POWERS[config.batch_test.rule]
    steps = count_steps(config, batch, beginning.replicas)
    changed = replace(
        own,
        job="train",
        batch_size=batch,
        batch_ramp={},
        accum=replace(config.accum, steps=steps),
        optim=replace(own.optim, lr=rate),
        schedule=ConstantConfig(),
        train=replace(config.train, steps=beginning.step + updates, patience=None),
        eval=replace(config.eval, every=every),
        checkpoint=replace(config.checkpoint, every=2 * every, keep=1, keep_hours=None),
        log=replace(config.log, every=max(1, every // RECORDS), tracker=NO_TRACKER, images=0, noise=False),
        run=replace(config.run, seed=(config.run.seed + order) % LARGEST_SEED, resume=FORCE),
    )
    words = [f"batch{batch}", *([] if factor == 1 else [replace_odd(f"rate{factor:g}")]), f"seed{order}"]
    name = "-".join([*words, digest_of(changed, beginning.checksum)])
    return Branch(batch, factor, order, replace(changed, run=replace(changed.run, dir=str(folder), name=name)))
