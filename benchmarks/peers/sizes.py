"""Sizes of the peers' transformers, by the names that accumtrain has for them."""

from __future__ import annotations

from typing import NamedTuple

EPSILON = 1e-6  # of layer norms
PATCH = 16
MLP_RATIO = 4
GATED_RATIO = 2.75  # of decoders


class Size(NamedTuple):
    depth: int
    width: int
    heads: int


VITS = {"vit_small": Size(12, 384, 6)}
ENCODERS = {"encoder_small": Size(4, 512, 8), "encoder_base": Size(12, 768, 12)}
DECODERS = {"decoder_small": Size(4, 512, 8)}
