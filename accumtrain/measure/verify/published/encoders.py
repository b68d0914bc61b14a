"""Published transformer encoders in float64 NumPy, straight from the tensors of their files.

job=verify compares an imported model with them. They share no code with what is checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from accumtrain.measure.verify.published.files import ReferenceKeys, ReferenceTensors
from accumtrain.measure.verify.published.functions import ACTIVATIONS, gelu, relu, softmax

# ---- what the families call their tensors and keys ----


@dataclass(frozen=True)
class _Family:
    """The names of a family: those in a block, of the keys in config.json, and of the parts of the masked-token head.

    Attributes:
        attention: query, key, value and output.
        norms: those of the attention and of the MLP: before it in a ViT, behind the sum in all others.
        keys: the number of heads, that of blocks, and the activation.
        defaults: their values where a key is not there.
        padding: the id of padding where config.json has none.
        token_head: dense layer, normalisation, decoder, and the bias of the decoder.
    """

    prefix: str
    block: str
    attention: tuple[str, str, str, str]
    mlp: tuple[str, str]
    norms: tuple[str, str]
    keys: tuple[str, str, str] = ("num_attention_heads", "num_hidden_layers", "hidden_act")
    defaults: tuple[int, int, str] = (12, 12, "gelu")
    padding: int = 0
    token_head: tuple[str, str, str, str] | None = None


_BERT = _Family(
    "bert",
    "encoder.layer",
    ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    ("intermediate.dense", "output.dense"),
    ("attention.output.LayerNorm", "output.LayerNorm"),
    token_head=(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
)
_ROBERTA = _Family(
    "roberta",
    _BERT.block,
    _BERT.attention,
    _BERT.mlp,
    _BERT.norms,
    padding=1,
    token_head=("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
)
_DISTILBERT = _Family(
    "distilbert",
    "transformer.layer",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
    ("ffn.lin1", "ffn.lin2"),
    ("sa_layer_norm", "output_layer_norm"),
    keys=("n_heads", "n_layers", "activation"),
    defaults=(12, 6, "gelu"),
    token_head=("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
)


def _vit(prefix: str) -> _Family:
    return _Family(
        prefix,
        "encoder.layer",
        ("attention.attention.query", "attention.attention.key", "attention.attention.value", "attention.output.dense"),
        ("intermediate.dense", "output.dense"),
        ("layernorm_before", "layernorm_after"),
    )


_FAMILIES = {  # by model_type
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": _DISTILBERT,
    "vit": _vit("vit"),
    "deit": _vit("deit"),
}
_IMAGES = ("vit", "deit")
# What these keys must be where config.json has them.
_ONLY = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}


class PublishedReference:
    """An encoder of a folder that transformers' `save_pretrained` writes: config.json beside safetensors.

    Args:
        folder: that folder. Each tensor is read when it is needed, so that one block is in memory at a time.

    Raises:
        ConfigError: config.json has a value that is not known here.
        DataError: a file is missing or can't be read, or a tensor is missing.
    """

    def __init__(self, folder: str | Path):
        self._config = ReferenceKeys(Path(folder) / "config.json")
        self.model_type: str = self._config.get_known("model_type", "", _FAMILIES)
        for key, value in _ONLY.items():
            self._config.get_known(key, value, (value,))
        self._family = family = _FAMILIES[self.model_type]
        (heads, depth, activation), (some, deep, usual) = family.keys, family.defaults
        self._heads, self._depth = self._config.get(heads, some), self._config.get(depth, deep)
        self._activation = ACTIVATIONS[self._config.get_known(activation, usual, ACTIVATIONS)]
        self._epsilon = 1e-12 if family is _DISTILBERT else self._config.get("layer_norm_eps", 1e-12)
        self._tensors = ReferenceTensors(Path(folder))
        self._base = f"{family.prefix}." if self._tensors.has_prefix(f"{family.prefix}.") else ""

    def hidden_states(self, inputs: np.ndarray, types: np.ndarray | None = None) -> list[np.ndarray]:
        """Return the embeddings and what each block makes of them, [N, T, C]; of images the final normalisation too.

        Args:
            inputs: tokens [N, T], of which those below 0 are padding; or normalised images [N, H, W, channels].
            types: of the tokens, [N, T]. All are 0 without them. Those of padding do not count.
        """
        if self.model_type in _IMAGES:
            x = self._embed_images(np.asarray(inputs, np.float64))
            present = np.ones(x.shape[:2], bool)
        else:
            present = inputs >= 0
            x = self._embed_tokens(inputs, present, np.zeros_like(inputs) if types is None else types)
        states = [x]
        for place in range(self._depth):
            states.append(self._block(states[-1], f"{self._base}{self._family.block}.{place}", present))
        if self.model_type in _IMAGES:
            states.append(self._norm(states[-1], f"{self._base}layernorm"))
        return states

    def pooled(self, final: np.ndarray) -> np.ndarray | None:
        """Return the pooler's vectors [N, C] of the last hidden states, or None if the file has no pooler."""
        if f"{self._base}pooler.dense.weight" not in self._tensors:
            return None
        activation = ACTIVATIONS[self._config.get_known("pooler_act", "tanh", ACTIVATIONS)]
        return activation(self._linear(final[:, 0], f"{self._base}pooler.dense"))

    def class_logits(self, final: np.ndarray) -> np.ndarray | None:
        """Return the logits [N, K] of the file's own classes, or None if the file has no such head."""
        first = final[:, 0]
        if "classifier.out_proj.weight" in self._tensors:  # roberta
            return self._linear(np.tanh(self._linear(first, "classifier.dense")), "classifier.out_proj")
        if "distillation_classifier.weight" in self._tensors:  # deit with a teacher
            own, taught = self._linear(first, "cls_classifier"), self._linear(final[:, 1], "distillation_classifier")
            return (own + taught) / 2.0
        if "classifier.weight" not in self._tensors:
            return None
        if self.model_type in _IMAGES:
            return self._linear(first, "classifier")
        if self._family is not _DISTILBERT:
            vector = self.pooled(final)
        elif "pre_classifier.weight" in self._tensors:
            vector = relu(self._linear(first, "pre_classifier"))
        else:
            vector = None  # the classifier is one of each token
        return None if vector is None else self._linear(vector, "classifier")

    def token_logits(self, final: np.ndarray) -> np.ndarray | None:
        """Return the logits [N, T, V] of masked tokens, or None if the file has no such head."""
        names = self._family.token_head
        if names is None or f"{names[0]}.weight" not in self._tensors:
            return None
        dense, norm, decoder, bias = names
        activation = gelu if self._family is _ROBERTA else self._activation  # exact whatever its config.json says
        x = self._norm(activation(self._linear(final, dense)), norm)
        kernel, tied = f"{self._base}embeddings.word_embeddings.weight", self._config.get("tie_word_embeddings", True)
        if not tied or f"{decoder}.weight" in self._tensors:
            kernel = f"{decoder}.weight"
        if not tied or f"{decoder}.bias" in self._tensors:
            bias = f"{decoder}.bias"
        return x @ self._tensors.read(kernel).T + self._tensors.read(bias)

    def _embed_tokens(self, tokens: np.ndarray, present: np.ndarray, types: np.ndarray) -> np.ndarray:
        padding = self._config.get("pad_token_id", self._family.padding) or 0
        words = np.where(present, tokens, padding)
        positions = np.broadcast_to(np.arange(words.shape[1]), words.shape)
        if self._family is _ROBERTA:  # a padding token in a text has no position of its own, as for transformers
            counted = words != padding
            positions = padding + np.cumsum(counted, axis=1) * counted
        indices = {"word_embeddings": words, "position_embeddings": positions}
        if self._family is not _DISTILBERT:
            indices["token_type_embeddings"] = np.where(present, types, 0)
        rows = [self._tensors.read_rows(f"{self._base}embeddings.{name}.weight", at) for name, at in indices.items()]
        return self._norm(np.sum(rows, axis=0), f"{self._base}embeddings.LayerNorm")

    def _embed_images(self, images: np.ndarray) -> np.ndarray:
        at = f"{self._base}embeddings."
        kernel = self._tensors.read(f"{at}patch_embeddings.projection.weight")  # [C, channels, height, width]
        (number, height, width, channels), (size, _, rows, columns) = images.shape, kernel.shape
        patches = images.reshape(number, height // rows, rows, width // columns, columns, channels)
        x = np.einsum("nyixjc,ocij->nyxo", patches, kernel, optimize=True).reshape(number, -1, size)
        x = x + self._tensors.read(f"{at}patch_embeddings.projection.bias")
        names = ["cls_token", "distillation_token"] if self.model_type == "deit" else ["cls_token"]
        tokens = [np.broadcast_to(self._tensors.read(f"{at}{name}"), (number, 1, size)) for name in names]
        return np.concatenate([*tokens, x], axis=1) + self._tensors.read(f"{at}position_embeddings")

    def _block(self, x: np.ndarray, at: str, present: np.ndarray) -> np.ndarray:
        first, second = (f"{at}.{name}" for name in self._family.norms)
        if self.model_type in _IMAGES:
            x = x + self._attend(self._norm(x, first), at, present)
            return x + self._mlp(self._norm(x, second), at)
        x = self._norm(x + self._attend(x, at, present), first)
        return self._norm(x + self._mlp(x, at), second)

    def _attend(self, x: np.ndarray, at: str, present: np.ndarray) -> np.ndarray:
        *inward, outward = (f"{at}.{name}" for name in self._family.attention)
        has_bias = self.model_type not in _IMAGES or self._config.get("qkv_bias", True)
        parts = [self._linear(x, name, has_bias).reshape(*x.shape[:2], self._heads, -1) for name in inward]
        query, key, value = (part.transpose(0, 2, 1, 3) for part in parts)
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])
        scores = np.where(present[:, None, None, :], scores, np.finfo(np.float64).min)
        mixed = softmax(scores) @ value
        return self._linear(mixed.transpose(0, 2, 1, 3).reshape(x.shape), outward)

    def _mlp(self, x: np.ndarray, at: str) -> np.ndarray:
        wide, narrow = (f"{at}.{name}" for name in self._family.mlp)
        return self._linear(self._activation(self._linear(x, wide)), narrow)

    def _linear(self, x: np.ndarray, at: str, has_bias: bool = True) -> np.ndarray:
        y = x @ self._tensors.read(f"{at}.weight").T
        return y + self._tensors.read(f"{at}.bias") if has_bias else y

    def _norm(self, x: np.ndarray, at: str) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self._epsilon)
        return x * self._tensors.read(f"{at}.weight") + self._tensors.read(f"{at}.bias")
