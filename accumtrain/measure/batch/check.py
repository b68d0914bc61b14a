"""The batches that job=batch tries, their micro-batches, and what it refuses before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accumtrain.config.arithmetic import micro_batch_size
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.fields import COUNT, POSITIVE, format_value

NONE = "none"  # value of batch_test.rule


def check_batch_test(config: Config) -> None:
    """Raise ConfigError for branches that can't be compared, as far as the keys tell."""
    options = config.batch_test
    batches = list_batches(config)
    _check_list(config, "batches", batches, [config.batch_size, 4 * config.batch_size])
    if len(batches) == 1:
        raise ConfigError(
            f"batch_test.batches={format_value(batches)}: one batch has nothing to be compared with; give two or more, "
            f"such as batch_test.batches={format_value(sorted({batches[0], 4 * batches[0]}))}"
        )
    _check_list(config, "rates", options.rates, [0.5, 1.0, 2.0])
    if options.examples is not None:
        check_examples(batches, options.examples, f"batch_test.examples={options.examples}")
    if config.optim.lr is None and (options.rule != NONE or options.rates != [1.0]):
        raise ConfigError(
            "optim.lr=null: the optimizer computes its own rate from the weights, which no factor changes; give "
            f"batch_test.rule={NONE} batch_test.rates=[1.0]"
        )
    if config.accum.reduction == "sum":
        raise ConfigError(
            "accum.reduction=sum: the gradient grows with accum.steps, which are others in each branch; add "
            "accum.reduction=mean run.resume=force"
        )
    if not config.accum.is_auto:
        check_splits(config, config.device.known_replicas)


def list_batches(config: Config) -> list[int]:
    """Return batch_test.batches, or those in the place of null. Raise ConfigError if there are none."""
    given, own = config.batch_test.batches, config.batch_size
    if given is not None:
        return given
    if config.batch_ramp:
        raise ConfigError(
            "batch_test.batches=null: the run has a batch_ramp, so its batch is not always batch_size; give the "
            f"batches to try, such as batch_test.batches=[{own},{2 * own},{4 * own}]"
        )
    if own % 4:
        raise ConfigError(
            f"batch_test.batches=null: a quarter of batch_size={own} is no whole number; give the batches, such as "
            f"batch_test.batches=[{own},{2 * own},{4 * own}]"
        )
    return [own // 4, own, 4 * own]


def _check_list(config: Config, name: str, values: Sequence[Any], example: Sequence[Any]) -> None:
    """Raise ConfigError for a list that is empty, or has a value twice or one that is too small."""
    key, instead = f"batch_test.{name}", f"such as batch_test.{name}={format_value(list(example))}"
    for place, value in enumerate(values):
        (COUNT if name == "batches" else POSITIVE).check(f"{key}[{place}]", value)
    if not values:
        raise ConfigError(f"{key}=[]: there is nothing to try; give some, {instead}")
    if twice := [value for value in values if values.count(value) > 1]:
        raise ConfigError(
            f"{key}={format_value(list(values))}: {format_value(twice[0])} is there twice, and each is tried once; "
            f"give different ones, {instead}"
        )


def check_examples(batches: Sequence[int], examples: int, given: str) -> None:
    """Raise ConfigError for branches of fewer examples than the largest batch.

    Args:
        given: where the number of examples comes from, in words.
    """
    largest = max(batches)
    if examples < largest:
        raise ConfigError(
            f"{given}: fewer examples than an update of the largest batch takes, {largest}; give "
            f"batch_test.examples={8 * largest}, or smaller batches"
        )


# ---- micro-batches ----


def check_splits(config: Config, replicas: int) -> None:
    """Raise ConfigError for a batch that can't be split into micro-batches of the run."""
    for batch in list_batches(config):
        count_steps(config, batch, replicas)
    least = config.model.least_micro_batch * replicas
    if (smallest := min(list_batches(config))) < least:
        raise ConfigError(
            f"batch_test.batches={format_value(list_batches(config))}: {config.model.label} can't train on "
            f"{smallest} at once, as its batch norm compares the examples of a micro-batch; give batches of at least "
            f"{least}"
        )


def count_steps(config: Config, batch: int, replicas: int) -> int:
    """Return accum.steps of a branch, whose micro-batch is that of the run, or the whole batch if that is smaller.

    Args:
        config: of the run, with accum.steps as a number.

    Raises:
        ConfigError: the batch is no multiple of it.
    """
    at_once = micro_batch_size(config.batch_size, config.accum.count, replicas) * replicas
    unit = at_once if batch > at_once else replicas
    if batch % unit == 0:
        return max(1, batch // at_once)
    below, above = batch // unit * unit, (batch // unit + 1) * unit
    what = f"{at_once} examples that the run computes at once" if batch > at_once else f"{replicas} replicas"
    raise ConfigError(
        f"batch_test.batches={format_value(list_batches(config))}: {batch} is not divisible by the {what}; nearest: "
        f"{f'{below}, {above}' if below else above}"
    )
