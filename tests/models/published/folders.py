"""Small folders of published weights, made of random numbers: config.json, safetensors, and what prepares the inputs.

Names, shapes and keys are those that transformers' `save_pretrained` writes. No PyTorch here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - with it NumPy knows bfloat16
import numpy as np
from safetensors.numpy import save_file

from tests.models.published.preparation import preprocessor_keys, write_tokenizer

Shapes = dict[str, tuple[int, ...]]  # by the names of tensors

TEXTS = ("bert", "roberta", "xlm-roberta", "distilbert")
DECODERS = ("gpt2", "llama")
IMAGES = ("vit", "deit")
# of tensors, where it is not the family itself
PREFIXES = {"xlm-roberta": "roberta", "gpt2": "transformer", "llama": "model"}
CLASSES, MASKED, NEXT = "classes", "masked_tokens", "next_tokens"  # the heads
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
ARCHITECTURES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "vit": "ViT",
    "deit": "DeiT",
    "gpt2": "GPT2",
    "llama": "Llama",
}


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model. A family ignores those that it does not have."""

    depth: int = 2
    width: int = 24
    heads: int = 3
    kv_heads: int = 1
    hidden: int = 40
    vocabulary: int = 60
    positions: int = 40
    labels: int = 3
    image: int = 16
    patch: int = 8


def write_folder(
    path: Path,
    family: str,
    *,
    head: str | None = None,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    config: dict[str, Any] | None = None,
    **sizes: int,
) -> Path:
    """Write a folder with config.json, safetensors, and tokenizer.json or preprocessor_config.json, and return it.

    Args:
        path: the folder, which is made.
        family: a model_type of TEXTS, DECODERS or IMAGES.
        head: CLASSES, MASKED of TEXTS, NEXT of DECODERS, or None for the base model, whose tensors have no prefix.
        seed: of the tensors.
        dtype: of the tensors: float32, float16, bfloat16 or float64.
        shards: the number of files. More than one have an index.
        config: keys of config.json over its own ones, such as {"hidden_act": "relu"}.
        sizes: fields of Sizes.
    """
    size = Sizes(**sizes)
    path.mkdir(parents=True)
    keys = config_keys(family, head, size) | (config or {})
    tensors = draw_tensors(tensor_shapes(family, head, size, keys), seed)
    _write_json(path / "config.json", keys)
    write_tensors(path, {name: tensor.astype(dtype) for name, tensor in tensors.items()}, shards)
    if family in IMAGES:
        _write_json(path / "preprocessor_config.json", preprocessor_keys(family, size.image))
    else:
        write_tokenizer(path / "tokenizer.json", family, size.vocabulary)
    return path


def write_tensors(path: Path, tensors: dict[str, np.ndarray], shards: int = 1) -> None:
    """Write the tensors into a folder: model.safetensors, or so many shards and their index."""
    metadata = {"format": "pt"}
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata)
        return
    places: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        shard = dict([*tensors.items()][number::shards])
        save_file(shard, path / file, metadata)
        places |= dict.fromkeys(shard, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(path / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def draw_inputs(family: str, seed: int = 0, **sizes: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return four inputs: tokens [4, 11] of mixed lengths, padded by -1, and the types of bert; or images [4, H, W, 3].

    The first token of a text is 3 or larger, as are all others, so that none is padding by its number.
    """
    size, random = Sizes(**sizes), np.random.default_rng(seed)
    if family in IMAGES:
        return random.uniform(-1.5, 1.5, (4, size.image, size.image, 3)), None
    lengths = np.array([[11], [3], [7], [1]])
    present = np.arange(11) < lengths
    tokens = np.where(present, random.integers(3, size.vocabulary, present.shape), -1)
    return tokens, np.where(present, np.arange(11) >= lengths // 2, 0).astype(int) if family == "bert" else None


def draw_tensors(shapes: Shapes, seed: int) -> dict[str, np.ndarray]:
    """Return random tensors. Those that multiply in a normalisation are around 1, all others around 0."""
    random = np.random.default_rng(seed)
    centres = {name: float(name.endswith(".weight") and len(shape) == 1) for name, shape in shapes.items()}
    return {name: centres[name] + random.uniform(-0.2, 0.2, shape) for name, shape in shapes.items()}


def config_keys(family: str, head: str | None, size: Sizes) -> dict[str, Any]:
    """Return the keys of config.json."""
    of_next = "LMHeadModel" if family == "gpt2" else "ForCausalLM"
    ending = {CLASSES: "ForSequenceClassification", MASKED: "ForMaskedLM", NEXT: of_next, None: "Model"}[head]
    if family in IMAGES:
        ending = ending.replace("Sequence", "Image")
    keys: dict[str, Any] = {"architectures": [ARCHITECTURES[family] + ending], "model_type": family}
    if head == CLASSES:
        labels = {f"kind {number}": number for number in range(size.labels)}
        keys |= {"id2label": {str(number): label for label, number in labels.items()}, "label2id": labels}
    if family == "gpt2":
        keys |= {"n_layer": size.depth, "n_embd": size.width, "n_head": size.heads, "n_inner": size.hidden}
        keys |= {"n_positions": size.positions, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
        return keys | {"vocab_size": size.vocabulary, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family == "distilbert":
        keys |= {"n_layers": size.depth, "dim": size.width, "n_heads": size.heads, "hidden_dim": size.hidden}
        keys |= {"activation": "gelu", "sinusoidal_pos_embds": False}
    else:
        keys |= {"num_hidden_layers": size.depth, "hidden_size": size.width, "num_attention_heads": size.heads}
        keys |= {"intermediate_size": size.hidden, "hidden_act": "gelu"}
        keys |= {"layer_norm_eps": 1e-5 if PREFIXES.get(family, family) == "roberta" else 1e-12}
    if family == "llama":
        keys |= {"hidden_act": "silu", "rms_norm_eps": 1e-6, "num_key_value_heads": size.kv_heads}
        keys |= {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "attention_bias": False}
        keys |= {"vocab_size": size.vocabulary, "max_position_embeddings": size.positions, "mlp_bias": False}
        return keys | {"tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family in IMAGES:
        return keys | {"image_size": size.image, "patch_size": size.patch, "num_channels": 3, "qkv_bias": True}
    keys |= {"vocab_size": size.vocabulary, "max_position_embeddings": size.positions, "tie_word_embeddings": True}
    if family in ("bert", "distilbert"):
        return keys | {"pad_token_id": 0} | ({"type_vocab_size": 2} if family == "bert" else {})
    return keys | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}


def tensor_shapes(family: str, head: str | None, size: Sizes, keys: dict[str, Any]) -> Shapes:
    """Return the shapes of all tensors by name."""
    if family in DECODERS:
        base = _gpt2_shapes(size) if family == "gpt2" else _llama_shapes(size, keys)
        if head is None:
            return base
        shapes = {f"{PREFIXES[family]}.{name}": shape for name, shape in base.items()}
        if head == CLASSES:
            return shapes | {"score.weight": (size.labels, size.width)}
        untied = not keys.get("tie_word_embeddings", family == "gpt2")
        return shapes | ({"lm_head.weight": (size.vocabulary, size.width)} if untied else {})
    base = _image_shapes(family, size, keys) if family in IMAGES else _text_shapes(family, size, keys)
    if (family, head) == ("bert", CLASSES) or (family != "distilbert" and head is None):
        base |= _linear("pooler.dense", size.width, size.width)
    if head is None:
        return base
    return {f"{PREFIXES.get(family, family)}.{name}": shape for name, shape in base.items()} | _head(family, head, size)


def _text_shapes(family: str, size: Sizes, keys: dict[str, Any]) -> Shapes:
    at = "embeddings"
    rows = {"word": size.vocabulary, "position": size.positions, "token_type": keys.get("type_vocab_size", 0)}
    shapes: Shapes = {f"{at}.{name}_embeddings.weight": (count, size.width) for name, count in rows.items() if count}
    shapes |= _norm(f"{at}.LayerNorm", size)
    for place in range(size.depth):
        if family == "distilbert":
            at = f"transformer.layer.{place}"
            for name in ("q_lin", "k_lin", "v_lin", "out_lin"):
                shapes |= _linear(f"{at}.attention.{name}", size.width, size.width)
            shapes |= _norm(f"{at}.sa_layer_norm", size) | _norm(f"{at}.output_layer_norm", size)
            shapes |= _mlp(f"{at}.ffn.lin1", f"{at}.ffn.lin2", size)
        else:
            at = f"encoder.layer.{place}"
            for name in ("self.query", "self.key", "self.value", "output.dense"):
                shapes |= _linear(f"{at}.attention.{name}", size.width, size.width)
            shapes |= _norm(f"{at}.attention.output.LayerNorm", size) | _norm(f"{at}.output.LayerNorm", size)
            shapes |= _mlp(f"{at}.intermediate.dense", f"{at}.output.dense", size)
    return shapes


def _gpt2_shapes(size: Sizes) -> Shapes:
    width, hidden = size.width, size.hidden
    shapes: Shapes = {"wte.weight": (size.vocabulary, width), "wpe.weight": (size.positions, width)}
    for place in range(size.depth):
        at = f"h.{place}"
        sizes = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width)}
        sizes |= {"mlp.c_fc": (width, hidden), "mlp.c_proj": (hidden, width)}
        for name, (inputs, outputs) in sizes.items():
            shapes |= {f"{at}.{name}.weight": (inputs, outputs), f"{at}.{name}.bias": (outputs,)}
        shapes |= _norm(f"{at}.ln_1", size) | _norm(f"{at}.ln_2", size)
    return shapes | _norm("ln_f", size)


def _llama_shapes(size: Sizes, keys: dict[str, Any]) -> Shapes:
    head = keys.get("head_dim") or size.width // size.heads
    queries, of_keys = size.heads * head, keys["num_key_value_heads"] * head
    attention = {"q": (queries, size.width), "k": (of_keys, size.width), "v": (of_keys, size.width)}
    attention |= {"o": (size.width, queries)}
    mlp = {"gate": (size.hidden, size.width), "up": (size.hidden, size.width), "down": (size.width, size.hidden)}
    shapes: Shapes = {"embed_tokens.weight": (size.vocabulary, size.width), "norm.weight": (size.width,)}
    for place in range(size.depth):
        at = f"layers.{place}"
        for part, sizes, biased in (("self_attn", attention, "attention_bias"), ("mlp", mlp, "mlp_bias")):
            for name, (outputs, inputs) in sizes.items():
                linear = _linear(f"{at}.{part}.{name}_proj", outputs, inputs)
                shapes |= {name: shape for name, shape in linear.items() if keys[biased] or len(shape) == 2}
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}.{name}.weight"] = (size.width,)
    return shapes


def _image_shapes(family: str, size: Sizes, keys: dict[str, Any]) -> Shapes:
    tokens = ["cls_token", "distillation_token"] if family == "deit" else ["cls_token"]
    positions = (size.image // size.patch) ** 2 + len(tokens)
    shapes: Shapes = {f"embeddings.{name}": (1, 1, size.width) for name in tokens}
    shapes["embeddings.position_embeddings"] = (1, positions, size.width)
    shapes["embeddings.patch_embeddings.projection.weight"] = (size.width, 3, size.patch, size.patch)
    shapes["embeddings.patch_embeddings.projection.bias"] = (size.width,)
    for place in range(size.depth):
        at = f"encoder.layer.{place}"
        for name in ("query", "key", "value"):
            projection = _linear(f"{at}.attention.attention.{name}", size.width, size.width)
            shapes |= {name: shape for name, shape in projection.items() if keys["qkv_bias"] or len(shape) == 2}
        shapes |= _linear(f"{at}.attention.output.dense", size.width, size.width)
        shapes |= _norm(f"{at}.layernorm_before", size) | _norm(f"{at}.layernorm_after", size)
        shapes |= _mlp(f"{at}.intermediate.dense", f"{at}.output.dense", size)
    return shapes | _norm("layernorm", size)


def _head(family: str, head: str, size: Sizes) -> Shapes:
    square = size.width, size.width
    if head == CLASSES:
        if PREFIXES.get(family, family) == "roberta":
            return _linear("classifier.dense", *square) | _linear("classifier.out_proj", size.labels, size.width)
        before = _linear("pre_classifier", *square) if family == "distilbert" else {}
        return before | _linear("classifier", size.labels, size.width)
    dense, norm, bias = {
        "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
        "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    }[PREFIXES.get(family, family)]
    return _linear(dense, *square) | _norm(norm, size) | {bias: (size.vocabulary,)}


def _linear(at: str, outputs: int, inputs: int) -> Shapes:
    return {f"{at}.weight": (outputs, inputs), f"{at}.bias": (outputs,)}


def _norm(at: str, size: Sizes) -> Shapes:
    return {f"{at}.weight": (size.width,), f"{at}.bias": (size.width,)}


def _mlp(wide: str, narrow: str, size: Sizes) -> Shapes:
    return _linear(wide, size.hidden, size.width) | _linear(narrow, size.width, size.hidden)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
