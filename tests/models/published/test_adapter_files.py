"""Adapters as PEFT's files: ours are opened there with the same logits, theirs are here, and what is refused."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.adapter_files import write_adapter
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.train.weights import begin_with_weights
from tests.models.published.folders import CLASSES, draw_inputs, write_folder
from tests.models.published.loaded import load_model
from tests.programs import output_of

TABLE = ("model=pretrained", "data=table", "data.path=mails.csv", "data.text_column=text", "data.label_column=kind")
TARGETS = {
    "bert": "query,attention.output.dense",
    "roberta": "key,value",
    "distilbert": "q_lin,lin2",
    "gpt2": "c_attn,c_proj,c_fc",
    "llama": "q_proj,v_proj,o_proj,down_proj",
}


def make_adapters(folder, family="bert", **keys):
    """Write `base` and `ours`, adapters that are not 0, into a folder; return their model."""
    base = write_folder(folder / "base", family, head=CLASSES)
    keys = {"lora_rank": 3, "lora_alpha": 6.0, "lora_targets": TARGETS[family].split(",")} | keys
    model, _ = load_model(base, "float32", **keys)
    random = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(random.normal(size=variable.shape, scale=0.2))
    write_adapter(model, PretrainedConfig(path=str(base), **keys), folder / "ours")
    return model


def begin(compose, folder, adapters, *more, classes=3):
    """Return the model that begins with adapters on top of the base, and what was loaded."""
    config = compose(*TABLE, f"model.path={folder / 'base'}", f"model.weights={folder / adapters}", *more)
    model = build_model(config.model, ModelSpec((11,), classes, inputs=("tokens",)))
    return model, begin_with_weights(config, model)


def keys_for(family, alpha=6):
    return "model.lora_rank=3", f"model.lora_alpha={alpha}", f"model.lora_targets=[{TARGETS[family]}]"


@pytest.mark.parametrize("family", TARGETS)
def test_adapters_are_read_as_they_were_written(compose, tmp_path, family):
    model = make_adapters(tmp_path, family)
    again, started = begin(compose, tmp_path, "ours", *keys_for(family))
    assert started.left == {}
    for path, variable in model.named.items():
        np.testing.assert_array_equal(again.named[path], variable)


def test_the_files_are_those_of_peft(tmp_path):
    make_adapters(tmp_path, "roberta")
    tensors = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    layer = "base_model.model.roberta.encoder.layer.1.attention.self.value"
    assert tensors[f"{layer}.lora_A.weight"].shape == (3, 24)
    assert tensors[f"{layer}.lora_B.weight"].shape == (24, 3)
    assert "base_model.model.classifier.out_proj.weight" in tensors
    keys = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    assert (keys["r"], keys["lora_alpha"], keys["modules_to_save"]) == (3, 6, ["classifier"])
    assert len(keys["target_modules"]) == 4


def test_the_files_of_a_gpt2_tell_how_its_kernels_lie(tmp_path):
    make_adapters(tmp_path, "gpt2")
    keys = json.loads((tmp_path / "ours" / "adapter_config.json").read_text())
    assert (keys["fan_in_fan_out"], keys["task_type"], keys["modules_to_save"]) == (True, "SEQ_CLS", ["score"])
    tensors = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    layer = "base_model.model.transformer.h.0.attn.c_attn"
    assert tensors[f"{layer}.lora_A.weight"].shape == (3, 24)
    assert tensors[f"{layer}.lora_B.weight"].shape == (72, 3)


def test_other_classes_get_a_new_head(compose, tmp_path):
    make_adapters(tmp_path)
    model, started = begin(compose, tmp_path, "ours", *keys_for("bert"), classes=5)
    assert {model.tensors[path].name for path in started.left} == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("keys", [(), keys_for("bert", alpha=3), ("model.lora_rank=3", "model.lora_alpha=6")])
def test_other_adapters_are_refused_and_the_remedy_fits(compose, tmp_path, keys):
    make_adapters(tmp_path)
    with pytest.raises(ConfigError, match=r"ours: has adapters of other layers, rank or alpha .*; give ") as raised:
        begin(compose, tmp_path, "ours", *keys)
    _, started = begin(compose, tmp_path, "ours", *str(raised.value).partition("; give ")[2].split())
    assert started.left == {}


def change(key, value):
    def damage(folder):
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))

    return damage


def truncate(folder):
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def make_infinite(folder):
    file = folder / "adapter_model.safetensors"
    save_file({name: tensor + np.float32(np.inf) for name, tensor in load_file(file).items()}, file)


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (change("peft_type", "LOHA"), ConfigError, r"adapter_config\.json\.peft_type=LOHA: .* only LORA is known"),
        (change("use_dora", True), ConfigError, r"use_dora=true: .* only false is known"),
        (change("rank_pattern", {"key": 4}), ConfigError, r"rank_pattern=.* only one rank and alpha for all"),
        (change("r", "3"), ConfigError, r"json\.r=3: must be a whole number"),
        (truncate, CheckpointError, r"adapter_model\.safetensors can't be read"),
        (make_infinite, CheckpointError, r"has numbers that are not finite"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), ConfigError, r"safetensors is not there"),
    ],
)
def test_a_damaged_folder_is_refused(compose, tmp_path, damage, error, message):
    make_adapters(tmp_path)
    damage(tmp_path / "ours")
    with pytest.raises(error, match=message):
        begin(compose, tmp_path, "ours", *keys_for("bert"))


@pytest.mark.parametrize("pattern", ["segments/1/*/kernel", "segments/1/*/gamma"])
def test_what_the_files_can_not_hold_is_not_written(tmp_path, pattern):
    with pytest.raises(ConfigError, match=r"^bert\..*\.weight is trained, and .*; use export.format=safetensors"):
        make_adapters(tmp_path, freeze=[f"-{pattern}"], lora_targets=["query"])
    assert not (tmp_path / "ours").exists()


@pytest.mark.skipif(not all(map(find_spec, ("torch", "transformers", "peft"))), reason="needs torch and peft")
@pytest.mark.parametrize("family", TARGETS)
def test_peft_computes_the_same(compose, tmp_path, family):
    model = make_adapters(tmp_path, family)
    tokens, _ = draw_inputs(family)
    np.save(tmp_path / "tokens.npy", tokens)
    output_of(Path(__file__).with_name("use_adapters.py"), tmp_path, TARGETS[family])
    logits = model(tokens.astype(np.int32)).numpy()
    np.testing.assert_allclose(logits, np.load(tmp_path / "ours.npy"), rtol=1e-4, atol=1e-5)
    theirs, started = begin(compose, tmp_path, "theirs", *keys_for(family))
    assert started.left == {}
    np.testing.assert_allclose(theirs(tokens.astype(np.int32)), np.load(tmp_path / "theirs.npy"), rtol=1e-4, atol=1e-5)
