"""The convolutions of residual functions whose output is kept for the backward pass.

Each output that is kept spares the multiplications of one convolution in the replay, and changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accumtrain.models.config import ResNetConfig

STREAMS_WITHOUT_COST = 1.5  # streams of the first stage that can be kept, in a reversed network


@dataclass(frozen=True)
class ConvPlace:
    """A convolution of a residual function.

    Attributes:
        function: of the unit: 0 for F, or for a ResNet's only one, 1 for G.
        conv: its number in the residual function.
        values: of its output, for each pixel of the first stage. Each stage halves height and width.
        spared: multiplications for each value of its output.
    """

    stage: int
    unit: int
    function: int
    conv: int
    values: float
    spared: int


def list_by_worth(config: ResNetConfig) -> list[ConvPlace]:
    """List the convolutions that can be kept, first those that spare most for each value, of equal ones the last."""
    return sorted(
        _list_places(config), key=lambda place: (-place.spared, -place.stage, -place.unit, -place.function, place.conv)
    )


def _list_places(config: ResNetConfig) -> Iterable[ConvPlace]:
    stem, *widths = config.stream_widths
    sizes = (1, 3, 1) if config.bottleneck else (3, 3)
    for stage, (count, outputs) in enumerate(zip(config.units, widths, strict=True)):
        inner = outputs // 4 if config.bottleneck else outputs
        for unit in range(count):
            for function in range(config.functions):
                entry = unit == 0 and function == 0
                inputs = ((stem, *widths)[stage] if entry else outputs, *[inner] * (len(sizes) - 1))
                kept = (*[inner] * (len(sizes) - 1), outputs)
                for conv in range(config.convs_to_keep(stage, unit)):
                    values, spared = kept[conv] / 4**stage, sizes[conv] ** 2 * inputs[conv]
                    yield ConvPlace(stage, unit, function, conv, values, spared)


def count_without_cost(places: Sequence[ConvPlace], first_stream: int) -> int:
    """Return the number of `places` that a reversed network keeps without a higher peak.

    Memory peaks late in the backward pass, in the first stage, whose images are the largest. What the later stages keep
    is freed by then. So they keep as much as one and a half streams of the first stage, of `first_stream` channels.
    """
    left = STREAMS_WITHOUT_COST * first_stream
    for count, place in enumerate(places):
        left -= place.values
        if place.stage == 0 or left < 0:
            return count
    return len(places)


def choose_kept_convs(config: ResNetConfig) -> set[ConvPlace]:
    """Return the convolutions that a network of `config` keeps.

    They are as many as model.kept_convs says. With null they are those that cost no memory at the peak.
    """
    if config.policy == "store":
        return set()
    places = list_by_worth(config)
    count = config.kept_convs
    if count is None:
        count = count_without_cost(places, config.stream_widths[1]) if config.policy == "reverse" else 0
    return set(places[:count])


def kept_convs_of(places: Iterable[ConvPlace], stage: int, unit: int, function: int) -> set[int]:
    """Return the numbers of the convolutions of one residual function that are kept."""
    return {place.conv for place in places if (place.stage, place.unit, place.function) == (stage, unit, function)}
