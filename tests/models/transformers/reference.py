"""Transformers in a few lines of plain operations, over the weights of a model by their paths; decoders in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf


def norm(x: Any, weights: Any, path: Any) -> Any:
    mean = tf.einsum("...c->...", x)[..., None] / x.shape[-1]
    variance = tf.einsum("...c,...c->...", x - mean, x - mean)[..., None] / x.shape[-1]
    return (x - mean) / tf.sqrt(variance + 1e-6) * weights[f"{path}/gamma"] + weights[f"{path}/beta"]


def linear(x: Any, weights: Any, path: Any) -> Any:
    return tf.einsum("...i,io->...o", x, weights[f"{path}/kernel"]) + weights[f"{path}/bias"]


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + tf.math.erf(x / math.sqrt(2)))


def attention(x: Any, heads: Any, mask: Any, weights: Any, path: Any) -> Any:
    x = linear(norm(x, weights, f"{path}/layers/0"), weights, f"{path}/layers/1")
    return linear(attend(x, heads, mask), weights, f"{path}/layers/3")


def attend(x: Any, heads: Any, mask: Any, factors: Any = None) -> Any:
    """Each head by itself; keys that the mask hides have no weight. `factors` [N, heads, T, T] multiply the weights."""
    queries, keys, values = tf.split(x, 3, axis=-1)
    size = queries.shape[-1] // heads
    outputs = []
    for head in range(heads):
        q, k, v = (part[..., head * size : (head + 1) * size] for part in (queries, keys, values))
        weight = tf.exp(tf.einsum("nqc,nkc->nqk", q, k) / math.sqrt(size))
        if mask is not None:
            weight *= tf.cast(mask, x.dtype)[:, None, :]
        share = weight / tf.reduce_sum(weight, -1, keepdims=True)
        outputs.append(tf.einsum("nqk,nkc->nqc", share if factors is None else share * factors[:, head], v))
    return tf.concat(outputs, -1)


def mlp(x: Any, weights: Any, path: Any) -> Any:
    x = gelu(linear(norm(x, weights, f"{path}/layers/0"), weights, f"{path}/layers/1"))
    return linear(x, weights, f"{path}/layers/3")


def blocks(x: Any, config: Any, mask: Any, weights: Any) -> Any:
    """The blocks of a plain or a reversible transformer; the streams of this one end side by side."""
    if config.kind in ("vit", "encoder"):
        for place in range(1, config.depth + 1):
            x = x + attention(x, config.heads, mask, weights, f"segments/{place}/layers/0/function")
            x = x + mlp(x, weights, f"segments/{place}/layers/1/function")
        return x
    x1 = x2 = x
    for place in range(config.depth):
        x1 = x1 + attention(x2, config.heads, mask, weights, f"segments/1/units/{place}/f/function")
        x2 = x2 + mlp(x1, weights, f"segments/1/units/{place}/g/function")
    return tf.concat([x1, x2], -1)


def embed(x: Any, config: Any, weights: Any) -> Any:
    path = "segments/0/layers/0"
    if config.has_class_token:
        x = tf.concat([tf.tile(weights[f"{path}/class_token"][None], [len(x), 1, 1]), x], 1)
    return x + weights[f"{path}/positions"]


def classify(model: Any, config: Any, inputs: Any) -> Any:
    """The logits [N, classes] of images, or of tokens."""
    weights = model.named
    head = next(path.removesuffix("/dense/kernel") for path in weights if path.endswith("/dense/kernel"))
    mask = None
    if config.takes == "tokens":
        mask = inputs >= 0
        x = tf.gather(weights["segments/0/layers/0/embed/embedding"], tf.where(mask, inputs, 0))
        if config.has_class_token:
            mask = tf.concat([tf.ones([len(inputs), 1], tf.bool), mask], 1)
    else:
        x = tf.image.extract_patches(inputs, *[[1, config.patch, config.patch, 1]] * 2, [1, 1, 1, 1], "VALID")
        x = tf.reshape(x, [len(inputs), -1, x.shape[-1]])
        x = linear(x, weights, "segments/0/layers/0/embed/linear")
    x = norm(blocks(embed(x, config, weights), config, mask, weights), weights, f"{head}/norm")
    if config.has_class_token:
        x = x[:, 0]
    elif mask is None:
        x = tf.einsum("ntc->nc", x) / x.shape[1]
    else:
        shown = tf.cast(mask, x.dtype)
        x = tf.einsum("ntc,nt->nc", x, shown) / tf.reduce_sum(shown, 1)[:, None]
    return linear(x, weights, f"{head}/dense")


def tell_tokens(model: Any, config: Any, inputs: Any) -> Any:
    """The logits [N, P, vocabulary] of the tokens at positions."""
    weights = model.named
    head = next(path.removesuffix("/last_norm/gamma") for path in weights if path.endswith("/last_norm/gamma"))
    tokens, positions = inputs["tokens"], inputs["positions"]
    table = weights["segments/0/layers/0/embed/embedding"]
    x = embed(tf.gather(table, tf.where(tokens >= 0, tokens, 0)), config, weights)
    x = blocks(x, config, tokens >= 0, weights)
    x = tf.stack([[example[position] for position in row] for example, row in zip(x, positions.numpy(), strict=True)])
    x = gelu(linear(norm(x, weights, f"{head}/norm"), weights, f"{head}/linear"))
    x = norm(x, weights, f"{head}/last_norm")
    return tf.einsum("npc,vc->npv", x, table) + weights[f"{head}/bias"]


# ---- decoders, in NumPy ----


def decode(weights: Any, config: Any, tokens: Any, documents: Any) -> Any:
    """The logits [N, T, vocabulary] of the token behind each, of a decoder whose weights are arrays by path."""
    table = weights["segments/0/layers/0/embed/embedding"]
    head = next(path.removesuffix("/norm/gamma") for path in weights if path.endswith("/norm/gamma"))
    logits = []
    for row, numbers in zip(tokens, documents, strict=True):
        places = [sum(other == number for other in numbers[:at]) for at, number in enumerate(numbers)]
        x = table[np.maximum(row, 0)]
        if config.positions == "learned":
            x = x + weights["segments/0/layers/0/positions"][places]
        x1, x2 = x, x
        for block in range(config.depth):
            if config.kind == "decoder":
                paths = [f"segments/{block + 1}/layers/{part}/function" for part in range(2)]
                x1 = x1 + decoder_attention(x1, weights, paths[0], config, places, numbers)
                x1 = x1 + decoder_mlp(x1, weights, paths[1], config)
            else:
                paths = [f"segments/1/units/{block}/{part}/function" for part in "fg"]
                x1 = x1 + decoder_attention(x2, weights, paths[0], config, places, numbers)
                x2 = x2 + decoder_mlp(x1, weights, paths[1], config)
        x = np_norm(x1 if config.kind == "decoder" else np.concatenate([x1, x2], 1), weights, f"{head}/norm")
        if config.kind != "decoder":
            x = np_linear(x, weights, f"{head}/linear")
        logits.append(x @ (table if config.tied else weights[f"{head}/vectors"]).T)
    return np.stack(logits)


def decoder_attention(x: Any, weights: Any, path: Any, config: Any, places: Any, numbers: Any) -> Any:
    """Each query by itself."""
    x = np_linear(np_norm(x, weights, f"{path}/layers/0"), weights, f"{path}/layers/1")
    size, kv_heads = config.width // config.heads, config.kv_heads or config.heads
    q, k, v = np.split(x, np.cumsum([config.heads * size, kv_heads * size]), axis=1)
    q, k, v = (each.reshape(len(x), -1, size) for each in (q, k, v))
    if config.positions == "rotary":
        q, k = (turned(each, places, config.theta) for each in (q, k))
    y = np.zeros([len(x), config.heads, size])
    for at in range(len(x)):
        for head in range(config.heads):
            group = head * kv_heads // config.heads
            seen = [other for other in range(at + 1) if numbers[other] == numbers[at]]
            weight = np.exp(k[seen, group] @ q[at, head] / math.sqrt(size))
            y[at, head] = weight / weight.sum() @ v[seen, group]
    return np_linear(y.reshape(len(x), -1), weights, f"{path}/layers/3")


def turned(x: Any, places: Any, theta: Any) -> Any:
    """The channels i and i + size / 2 of each head as a complex number, which is multiplied by exp(i angle)."""
    half = x.shape[-1] // 2
    turns = np.exp(1j * np.outer(places, theta ** (-np.arange(half) / half)))[:, None]
    y = (x[..., :half] + 1j * x[..., half:]) * turns
    return np.concatenate([y.real, y.imag], -1)


def decoder_mlp(x: Any, weights: Any, path: Any, config: Any) -> Any:
    x = np_linear(np_norm(x, weights, f"{path}/layers/0"), weights, f"{path}/layers/1")
    if config.activation == "swiglu":
        gate, value = np.split(x, 2, axis=1)
        x = gate / (1 + np.exp(-gate)) * value
    else:
        x = gelu(x).numpy()
    return np_linear(x, weights, f"{path}/layers/3")


def np_norm(x: Any, weights: Any, path: Any) -> Any:
    """RMS norm, or layer norm where there is a beta."""
    beta = weights.get(f"{path}/beta")
    x = x if beta is None else x - x.mean(1, keepdims=True)
    y = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * weights[f"{path}/gamma"]
    return y if beta is None else y + beta


def np_linear(x: Any, weights: Any, path: Any) -> Any:
    return x @ weights[f"{path}/kernel"] + weights.get(f"{path}/bias", 0.0)
