"""The convolutions of residual functions, and those whose output is kept for the backward pass.

Each output that is kept spares the multiplications of one convolution in the replay, and changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accumtrain.models.config import ResNetConfig

STREAMS_WITHOUT_COST = 1.5  # streams of the first stage that can be kept, in a reversed network


@dataclass(frozen=True)
class ConvAddress:
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


def conv_shapes(inputs: int, outputs: int, bottleneck: bool) -> list[tuple[int, int, int]]:
    """Return size, inputs and outputs of each convolution of a residual function."""
    if not bottleneck:
        return [(3, inputs, outputs), (3, outputs, outputs)]
    inner = outputs // 4
    return [(1, inputs, inner), (3, inner, inner), (1, inner, outputs)]


def list_by_worth(config: ResNetConfig) -> list[ConvAddress]:
    """List the convolutions that can be kept, first those that spare most for each value, of equal ones the last."""
    return sorted(
        _list_addresses(config),
        key=lambda address: (-address.spared, -address.stage, -address.unit, -address.function, address.conv),
    )


def _list_addresses(config: ResNetConfig) -> Iterable[ConvAddress]:
    stem, *widths = config.stream_widths
    for stage, (count, outputs) in enumerate(zip(config.units, widths, strict=True)):
        for unit in range(count):
            for function in range(config.functions):
                inputs = (stem, *widths)[stage] if unit == function == 0 else outputs
                shapes = conv_shapes(inputs, outputs, config.bottleneck)[: config.convs_to_keep(stage, unit)]
                for conv, (size, read, given) in enumerate(shapes):
                    yield ConvAddress(stage, unit, function, conv, values=given / 4**stage, spared=size**2 * read)


def count_without_cost(addresses: Sequence[ConvAddress], first_stream: int) -> int:
    """Return the number of `addresses` that a reversed network keeps without a higher peak.

    Memory peaks late in the backward pass, in the first stage, whose images are the largest. The tensors of the later
    stages are freed by then. So these keep as much as one and a half streams of the first stage, of `first_stream`
    channels.
    """
    left = STREAMS_WITHOUT_COST * first_stream
    for count, address in enumerate(addresses):
        left -= address.values
        if address.stage == 0 or left < 0:
            return count
    return len(addresses)


def choose_kept_convs(config: ResNetConfig) -> set[ConvAddress]:
    """Return the convolutions that a network of `config` keeps.

    They are as many as model.kept_convs says. With null they are those that cost no memory at the peak.
    """
    if config.policy == "store":
        return set()
    addresses = list_by_worth(config)
    count = config.kept_convs
    if count is None:
        count = count_without_cost(addresses, config.stream_widths[1]) if config.policy == "reverse" else 0
    return set(addresses[:count])


def kept_convs_of(addresses: Iterable[ConvAddress], stage: int, unit: int, function: int) -> set[int]:
    """Return the numbers of the convolutions of one residual function that are kept."""
    return {
        address.conv
        for address in addresses
        if (address.stage, address.unit, address.function) == (stage, unit, function)
    }
