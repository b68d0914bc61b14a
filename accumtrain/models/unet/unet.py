"""The plain U-Net (Ronneberger et al. 2015, arXiv:1505.04597), with norms, and padded so that no size changes."""

from __future__ import annotations

from itertools import pairwise

from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Module
from accumtrain.backprop.segments import Chain, Segment
from accumtrain.models.config import UNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.models.resnet.blocks import with_norm_momentum
from accumtrain.models.unet.layers import ConcatUpConv, ConvNormReLU, PixelHead, pool_beside
from accumtrain.models.unet.skips import pass_skips


def build_unet(config: UNetConfig, spec: ModelSpec) -> Model:
    """Build one segment for each level on the way down, two with its pooling, one on the way up, and the head."""
    init, policy, filters = spec.init, config.policy, config.filters

    def block(inputs: int, outputs: int) -> list[Module]:
        return [ConvNormReLU(init, config.norm, inputs, outputs), ConvNormReLU(init, config.norm, outputs, outputs)]

    segments: list[Segment] = [Chain(policy, block(spec.channels, filters[0]))]
    steps = list(enumerate(pairwise(filters)))
    for skips, (inputs, outputs) in steps:
        segments.append(pass_skips(skips, Chain(policy, [pool_beside])))
        segments.append(pass_skips(skips + 1, Chain(policy, block(inputs, outputs))))
    for skips, (outputs, inputs) in reversed(steps):
        layers: list[Module] = [ConcatUpConv(init, inputs, outputs), *block(2 * outputs, outputs)]
        segments.append(pass_skips(skips, Chain(policy, layers)))
    segments.append(Chain(policy, [PixelHead(init, filters[0], spec.num_classes)]))
    return with_norm_momentum(Model(segments, spec.compute_dtype), config.norm_momentum)
