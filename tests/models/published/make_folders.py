"""Folders of small random models by transformers, and what PyTorch computes of them in float64.

python make_folders.py PARENT

A folder for each of CASES is made in PARENT. Then each folder in it, also one that was there before, gets expected.npz:
the inputs, `types` of the tokens where there are some, the hidden states `state_0` and on, and `final`, `pooled`,
`class_logits` and `token_logits` where the model returns them. Run by a Python with torch and transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.models.published.folders import IMAGES, LLAMA3, draw_inputs
from tests.models.published.in_float64 import in_float64

TEXT = {
    "num_hidden_layers": 2,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "vocab_size": 60,
    "max_position_embeddings": 40,
    "num_labels": 3,
}
ROBERTA = TEXT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
IMAGE = {name: TEXT[name] for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")}
IMAGE |= {"num_labels": 3, "image_size": 16, "patch_size": 8}
DECODER = TEXT | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = DECODER | {"num_key_value_heads": 1}
# by the name of the folder: the model, the keys of its configuration, and those of save_pretrained
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("BertModel", TEXT, {}),
    "bert_classes": ("BertForSequenceClassification", TEXT | {"layer_norm_eps": 1e-3}, {"max_shard_size": "9KB"}),
    "bert_masked": ("BertForMaskedLM", TEXT | {"hidden_act": "gelu_new"}, {}),
    "bert_untied": ("BertForMaskedLM", TEXT | {"tie_word_embeddings": False}, {}),
    "bert_pretraining": ("BertForPreTraining", TEXT, {}),
    "bert_of_each_token": ("BertForTokenClassification", TEXT, {}),
    "roberta": ("RobertaModel", ROBERTA, {}),
    "roberta_classes": ("RobertaForSequenceClassification", ROBERTA, {}),
    "roberta_masked": ("RobertaForMaskedLM", ROBERTA | {"hidden_act": "relu"}, {}),
    "xlm_roberta_classes": ("XLMRobertaForSequenceClassification", ROBERTA, {}),
    "xlm_roberta_masked": ("XLMRobertaForMaskedLM", ROBERTA, {"max_shard_size": "9KB"}),
    "distilbert": ("DistilBertModel", TEXT | {"hidden_dim": 40}, {}),
    "distilbert_classes": ("DistilBertForSequenceClassification", TEXT | {"hidden_dim": 40, "activation": "relu"}, {}),
    "distilbert_masked": ("DistilBertForMaskedLM", TEXT | {"hidden_dim": 40}, {}),
    "gpt2": ("GPT2Model", DECODER | {"activation_function": "gelu"}, {}),
    "gpt2_classes": ("GPT2ForSequenceClassification", DECODER | {"n_inner": 40}, {"max_shard_size": "9KB"}),
    "gpt2_next": ("GPT2LMHeadModel", DECODER, {}),
    "gpt2_untied": ("GPT2LMHeadModel", DECODER | {"tie_word_embeddings": False}, {}),
    "llama": ("LlamaModel", DECODER, {}),
    "llama_classes": ("LlamaForSequenceClassification", GROUPED, {"max_shard_size": "9KB"}),
    "llama_next": ("LlamaForCausalLM", GROUPED | {"attention_bias": True, "mlp_bias": True}, {}),
    "llama_tied": ("LlamaForCausalLM", GROUPED | {"tie_word_embeddings": True, "head_dim": 10}, {}),
    "llama_scaled": ("LlamaForCausalLM", DECODER | {"rope_parameters": LLAMA3}, {}),
    "vit": ("ViTModel", IMAGE | {"pooler_act": "relu"}, {}),
    "vit_classes": ("ViTForImageClassification", IMAGE | {"qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"}, {}),
    "deit_classes": ("DeiTForImageClassification", IMAGE, {}),
    "deit_with_teacher": ("DeiTForImageClassificationWithTeacher", IMAGE, {}),
}


def make_folder(path: Path, seed: int) -> None:
    """Make a folder of CASES by its name. No weight is 0, nor 1 in a normalisation."""
    architecture, keys, saving = CASES[path.name]
    kind = getattr(transformers, architecture)
    model = kind(kind.config_class(**keys))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            centre = float(parameter.ndim == 1 and bool((parameter == 1).all()))
            parameter.copy_(centre + 0.1 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path, **saving)


def write_expected(path: Path) -> None:
    """Write expected.npz beside a config.json, of the model of its first architecture."""
    keys = json.loads((path / "config.json").read_text(encoding="utf-8"))
    family = keys["model_type"]
    sizes = {"image": keys["image_size"]} if family in IMAGES else {"vocabulary": keys["vocab_size"]}
    inputs, types = draw_inputs(family, **sizes)
    if family in IMAGES:
        given = {"pixel_values": torch.tensor(inputs.transpose(0, 3, 1, 2))}
    else:
        words = np.where(inputs < 0, keys["pad_token_id"], inputs)
        given = {"input_ids": torch.tensor(words), "attention_mask": torch.tensor(inputs >= 0).long()}
    if types is not None:
        given["token_type_ids"] = torch.tensor(types)
    model = getattr(transformers, keys["architectures"][0]).from_pretrained(path, dtype=torch.float64).double().eval()
    with torch.no_grad(), in_float64(model):
        output = model(**given, output_hidden_states=True)
    arrays = {f"state_{place}": state.numpy() for place, state in enumerate(output.hidden_states)}
    arrays |= {"inputs": inputs} | ({} if types is None else {"types": types})
    if getattr(output, "pooler_output", None) is not None:
        arrays["pooled"] = output.pooler_output.numpy()
    if getattr(output, "last_hidden_state", None) is not None:
        arrays["final"] = output.last_hidden_state.numpy()
    if "prediction_logits" in output:
        arrays["token_logits"] = output.prediction_logits.numpy()
    elif "logits" in output and "TokenClassification" not in keys["architectures"][0]:
        arrays["class_logits" if output.logits.ndim == 2 else "token_logits"] = output.logits.numpy()
    np.savez(path / "expected.npz", **arrays)


def main() -> None:
    parent = Path(sys.argv[1])
    for seed, name in enumerate(CASES):
        make_folder(parent / name, seed)
    for folder in parent.iterdir():
        write_expected(folder)


if __name__ == "__main__":
    main()
