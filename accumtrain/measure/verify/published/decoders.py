"""Published causal decoders in float64 NumPy, straight from the tensors of their files.

job=verify compares an imported model with them. They share no code with what is checked.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from accumtrain.measure.verify.published.files import ReferenceKeys, ReferenceTensors
from accumtrain.measure.verify.published.functions import ACTIVATIONS, silu, softmax

# by model_type: what these keys must be where config.json has them
_ONLY: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    "llama": {"hidden_act": "silu", "rope_interleaved": False, "partial_rotary_factor": 1.0},
}
_PREFIXES = {"gpt2": "transformer.", "llama": "model."}
DECODERS = tuple(_ONLY)


class DecoderReference:
    """A decoder of a folder that transformers' `save_pretrained` writes: config.json beside safetensors.

    Args:
        folder: that folder. Each tensor is read when it is needed, so that one block is in memory at a time.

    Raises:
        ConfigError: config.json has a value that is not known here.
        DataError: a file is missing or can't be read, or a tensor is missing.
    """

    def __init__(self, folder: str | Path):
        self._config = ReferenceKeys(Path(folder) / "config.json")
        self.model_type: str = self._config.get_known("model_type", "", DECODERS)
        for key, value in _ONLY[self.model_type].items():
            self._config.get_known(key, value, (value,))
        self._tensors = ReferenceTensors(Path(folder))
        prefix = _PREFIXES[self.model_type]
        self._base = prefix if self._tensors.has_prefix(prefix) else ""
        self._is_gpt2 = self.model_type == "gpt2"
        if self._is_gpt2:
            self._activation = ACTIVATIONS[self._config.get_known("activation_function", "gelu_new", ACTIVATIONS)]

    def hidden_states(self, tokens: np.ndarray, documents: np.ndarray | None = None) -> list[np.ndarray]:
        """Return the embeddings, what each block makes of them, and the final normalisation of that, [N, T, C].

        Args:
            tokens: [N, T]. Those below 0 are padding, which stands at the end.
            documents: equal numbers where tokens are of one document; None if a row is one.
        """
        row = np.arange(tokens.shape[1])
        documents = np.zeros_like(tokens) if documents is None else documents
        begins = np.pad(documents[:, 1:] != documents[:, :-1], [(0, 0), (1, 0)], constant_values=True)
        places = row - np.maximum.accumulate(np.where(begins, row, 0), axis=1)
        seen = (row <= row[:, np.newaxis]) & (documents[:, np.newaxis] == documents[:, :, np.newaxis])
        seen &= (tokens >= 0)[:, np.newaxis]
        seen |= ~seen.any(axis=2, keepdims=True)  # the padding of packed rows sees no token, and has no softmax
        depth = self._config.get("n_layer", 12) if self._is_gpt2 else self._config.get("num_hidden_layers", 32)
        states = [self._embed(np.maximum(tokens, 0), places)]
        for number in range(depth):
            block = self._gpt2_block if self._is_gpt2 else self._llama_block
            states.append(block(states[-1], number, places, seen[:, np.newaxis]))
        return [*states, self._norm(states[-1], "ln_f" if self._is_gpt2 else "norm")]

    def class_logits(self, final: np.ndarray, tokens: np.ndarray) -> np.ndarray | None:
        """Return the logits [N, K] of the file's own classes, or None if the file has no such head.

        Args:
            final: the last hidden states.
            tokens: [N, T]. That of padding in config.json tells no class, nor those below 0.
        """
        if "score.weight" not in self._tensors:
            return None
        shown = (tokens >= 0) & (tokens != self._config.get("pad_token_id", None))
        last = final[np.arange(len(final)), (np.arange(tokens.shape[1]) * shown).argmax(1)]
        return last @ self._tensors.read("score.weight").T

    def next_logits(self, final: np.ndarray) -> np.ndarray | None:
        """Return the logits [N, T, V] of the next tokens, or None if the file has no such head."""
        name = "lm_head.weight"
        if self._config.get("tie_word_embeddings", self._is_gpt2):
            name = f"{self._base}{'wte' if self._is_gpt2 else 'embed_tokens'}.weight"
        return final @ self._tensors.read(name).T if name in self._tensors else None

    def _embed(self, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
        if not self._is_gpt2:
            return self._tensors.read_rows(f"{self._base}embed_tokens.weight", tokens)
        positions = self._tensors.read_rows(f"{self._base}wpe.weight", places)
        return self._tensors.read_rows(f"{self._base}wte.weight", tokens) + positions

    def _gpt2_block(self, x: np.ndarray, number: int, places: np.ndarray, seen: np.ndarray) -> np.ndarray:
        def linear(x: np.ndarray, name: str) -> np.ndarray:
            return x @ self._tensors.read(f"{at}{name}.weight") + self._tensors.read(f"{at}{name}.bias")

        at, heads = f"{self._base}h.{number}.", self._config.get("n_head", 12)
        parts = np.split(linear(self._norm(x, f"h.{number}.ln_1"), "attn.c_attn"), 3, axis=-1)
        query, key, value = (_to_heads(part, heads) for part in parts)
        x = x + linear(_attend(query, key, value, seen), "attn.c_proj")
        return x + linear(self._activation(linear(self._norm(x, f"h.{number}.ln_2"), "mlp.c_fc")), "mlp.c_proj")

    def _llama_block(self, x: np.ndarray, number: int, places: np.ndarray, seen: np.ndarray) -> np.ndarray:
        def linear(x: np.ndarray, name: str) -> np.ndarray:
            y = x @ self._tensors.read(f"{at}{name}_proj.weight").T
            part = "attention_bias" if name.startswith("self_attn") else "mlp_bias"
            return y + self._tensors.read(f"{at}{name}_proj.bias") if self._config.get(part, False) else y

        at, heads = f"{self._base}layers.{number}.", self._config.get("num_attention_heads", 32)
        kv_heads = self._config.get("num_key_value_heads", None) or heads
        normed = self._norm(x, f"layers.{number}.input_layernorm")
        query = self._turn(_to_heads(linear(normed, "self_attn.q"), heads), places)
        key = self._turn(_to_heads(linear(normed, "self_attn.k"), kv_heads), places)
        value = _to_heads(linear(normed, "self_attn.v"), kv_heads)
        key, value = (np.repeat(each, heads // kv_heads, axis=1) for each in (key, value))
        x = x + linear(_attend(query, key, value, seen), "self_attn.o")
        normed = self._norm(x, f"layers.{number}.post_attention_layernorm")
        return x + linear(silu(linear(normed, "mlp.gate")) * linear(normed, "mlp.up"), "mlp.down")

    def _turn(self, x: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return heads [N, heads, T, C] with channels i and i + C / 2, as complex numbers, turned by their places."""
        half = x.shape[-1] // 2
        angles = places[:, np.newaxis, :, np.newaxis] * self._frequencies(2 * half)
        turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _frequencies(self, channels: int) -> np.ndarray:
        scaling = self._config.get("rope_scaling", None) or self._config.get("rope_parameters", None) or {}
        theta = scaling.get("rope_theta", self._config.get("rope_theta", 10000.0))
        plain = 1.0 / theta ** (np.arange(0, channels, 2, dtype=np.float64) / channels)
        if scaling.get("rope_type", scaling.get("type", "default")) == "default":
            return plain
        early, factor = scaling["original_max_position_embeddings"], scaling["factor"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        waves = 2.0 * math.pi / plain
        smooth = (early / waves - low) / (high - low)
        between = (1.0 - smooth) * plain / factor + smooth * plain
        return np.where(waves > early / low, plain / factor, np.where(waves < early / high, plain, between))

    def _norm(self, x: np.ndarray, at: str) -> np.ndarray:
        weight = self._tensors.read(f"{self._base}{at}.weight")
        if not self._is_gpt2:
            return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self._config.get("rms_norm_eps", 1e-6)) * weight
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self._config.get("layer_norm_epsilon", 1e-5))
        return x * weight + self._tensors.read(f"{self._base}{at}.bias")


def _to_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """Return x [N, T, heads C] as [N, heads, T, C]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return the attention of heads [N, heads, T, C] to the keys that are seen, [N, T, heads C]."""
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
    mixed = (softmax(np.where(seen, scores, -np.inf)) @ value).transpose(0, 2, 1, 3)
    return mixed.reshape(*mixed.shape[:2], -1)
