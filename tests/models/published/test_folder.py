"""Folders that are damaged, of something else, or hostile: each is refused by name, before memory is taken."""

import json
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file

from accumtrain.errors import AccumtrainError, CheckpointError, ConfigError
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.folder import Folder
from accumtrain.models.published.stored import StoredTensors
from tests.models.published.folders import CLASSES, write_folder, write_tensors


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "model", "bert", head=CLASSES)


def read_all(folder):
    """Do what a run does at its beginning."""
    found = Folder(folder)
    stored = StoredTensors(found)
    stored.check_shapes(found.architecture)
    return {name: stored.read(name) for name in stored.shapes}


def change(folder, **keys):
    file = folder / "config.json"
    content = json.loads(file.read_text()) | keys
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def change_tensors(folder, change):
    write_tensors(folder, change(load_file(folder / "model.safetensors")))


def test_a_whole_folder_is_read(folder):
    assert len(read_all(folder)) == 41


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "mixtral"}, "model_type=mixtral is no family that is known here"),
        ({"model_type": ["bert"]}, r"model_type=\[bert\] is no family"),
        ({"model_type": ...}, "model_type=null is no family"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type=relative_key: this model computes"),
        ({"is_decoder": True}, "is_decoder=true"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=false"),
        ({"hidden_act": "swiglu"}, "hidden_act=swiglu: no such choice"),
        ({"num_attention_heads": 10_000}, "10000 attention heads do not share 24 channels"),
        ({"num_attention_heads": 0}, "num_attention_heads=0: must be at least 1"),
        ({"hidden_size": "24"}, "hidden_size=24: must be a whole number"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": 2**40}, "hidden_size=1099511627776"),
        ({"layer_norm_eps": 7}, "layer_norm_eps=7"),
    ],
)
def test_a_config_that_is_not_known_here_is_refused(keys, message, folder):
    change(folder, **keys)
    with pytest.raises(ConfigError, match=message) as error:
        read_all(folder)
    assert "config.json" in str(error.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hidden_size": 240_000}, r"is \[60, 24\], and config.json describes \[60, 240000\]"),
        ({"vocab_size": 2**30}, r"describes \[1073741824, 24\]"),
        ({"num_hidden_layers": 2**30}, "config.json tells 1,073,741,824 blocks, and there are 41 tensors"),
        ({"num_hidden_layers": 3}, "no tensor bert.encoder.layer.2.attention.self.query.weight in model.safetensors"),
        ({"type_vocab_size": 3}, "token_type_embeddings"),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(keys, message, folder):
    change(folder, **keys)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message):
        read_all(folder)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (without(QUERY), f"no tensor {QUERY}"),
        (lambda tensors: tensors | {QUERY: np.zeros([3, 4], np.float32)}, r"query.weight in .* is \[3, 4\]"),
        (lambda tensors: tensors | {QUERY: np.full([24, 24], np.nan, np.float32)}, "not finite"),
        (lambda tensors: tensors | {QUERY: np.zeros([24, 24], np.int8)}, "numbers of kind I8"),
    ],
)
def test_tensors_of_another_model_are_refused(changed, message, folder):
    change_tensors(folder, changed)
    with pytest.raises(CheckpointError, match=message) as error:
        read_all(folder)
    assert "model.safetensors" in str(error.value)


def test_a_truncated_file_is_refused(folder):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in (1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model.safetensors can't be read as a file of safetensors"):
            read_all(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/../../x.safetensors", ""])
def test_a_shard_lies_in_the_folder(name, folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {QUERY: name}}))
    with pytest.raises(ConfigError, match="is no file of the folder"):
        read_all(folder)


def test_a_shard_that_is_missing_is_named(tmp_path):
    path = write_folder(tmp_path / "model", "bert", head=CLASSES, shards=3)
    assert len(read_all(path)) == 41
    (path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-00003.safetensors is not there"):
        read_all(path)


@pytest.mark.parametrize("content", ["", "[]", "{", "\udcff", '{"a":' * 100_000])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_what_is_no_json_is_refused(name, content, folder):
    (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=name):
        read_all(folder)


def test_a_pickle_is_not_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(
        ConfigError,
        match=r"a pickle, which can run any code.* import BertForSequenceClassification as M; .*save_pretrained",
    ):
        read_all(folder)


@pytest.mark.parametrize("what", ["config.json", "model.safetensors"])
def test_a_file_that_is_not_there_is_named(what, folder):
    (folder / what).unlink()
    with pytest.raises(AccumtrainError, match=f"{what} is not there"):
        read_all(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"is no folder; give one with config.json and model.safetensors"):
        PretrainedConfig(path=str(tmp_path / "nowhere")).check()


def test_images_without_their_preprocessor_ask_for_mean_and_std(tmp_path):
    path = write_folder(tmp_path / "model", "vit", head=CLASSES)
    assert Folder(path).list_data_keys(()) == {"image_size": 16, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    (path / "preprocessor_config.json").unlink()
    assert Folder(path).list_data_keys({"mean", "std"}) == {"image_size": 16}
    with pytest.raises(ConfigError, match=r"give data.mean and data.std"):
        Folder(path).list_data_keys({"mean"})


def test_texts_are_read_by_the_tokenizer_of_the_folder(folder):
    assert Folder(folder).list_data_keys(()) == {"tokenizer": str(folder)}
