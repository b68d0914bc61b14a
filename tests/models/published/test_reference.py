"""The reference of published encoders: PyTorch's numbers in float64, stored ones without it, and what is refused."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from accumtrain.errors import ConfigError, DataError
from accumtrain.measure.verify.published.decoders import DECODERS, DecoderReference
from accumtrain.measure.verify.published.encoders import PublishedReference
from tests.models.published.folders import CLASSES, LLAMA3, MASKED, NEXT, draw_inputs, write_folder, write_tensors
from tests.programs import output_of

NO_PEERS = "needs torch and transformers"
OLDER = {"rope_parameters": None, "rope_scaling": LLAMA3, "tie_word_embeddings": True}
BIASED = {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "num_key_value_heads": 3}
TANH = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-4}
# The arguments of write_folder and what `digest` makes of the reference's numbers there. The first test compares all
# numbers of the very same folders with PyTorch's.
STORED = {
    "bert": ("bert", {}, [0.8209308, 0.6082292, 0.4114939, 0.03595578]),
    "bert_classes": ("bert", {"head": CLASSES}, [0.8313762, 2.404277, 0.2837791, -0.2864229]),
    "bert_masked": ("bert", {"head": MASKED}, [0.7987465, -1.223433, 0.467197, 0.05454902]),
    "roberta": ("roberta", {}, [0.814998, -0.7839048, 0.4248622, -0.5427666]),
    "roberta_classes": ("roberta", {"head": CLASSES}, [0.8288855, 0.04824785, 0.2468297, -0.4430008]),
    "roberta_masked": ("roberta", {"head": MASKED}, [0.8086878, -0.09796684, 0.4730205, 0.4499825]),
    "xlm_roberta": ("xlm-roberta", {}, [0.8642295, -1.057123, 0.3885167, -0.1936051]),
    "xlm_roberta_classes": ("xlm-roberta", {"head": CLASSES}, [0.7433895, -0.7098749, 0.2821253, -0.3485247]),
    "xlm_roberta_masked": ("xlm-roberta", {"head": MASKED}, [0.8249806, 1.104962, 0.5122151, -0.954862]),
    "distilbert": ("distilbert", {}, [0.8047038, -0.2035655, 0.8047038, 0.2013887]),
    "distilbert_classes": ("distilbert", {"head": CLASSES}, [0.8352434, 0.3078783, 0.236032, -0.3283145]),
    "distilbert_masked": ("distilbert", {"head": MASKED}, [0.7844343, 0.006631512, 0.4686465, -0.4346244]),
    "vit": ("vit", {}, [0.8290968, -0.7510154, 0.4270106, 0.6205282]),
    "vit_classes": ("vit", {"head": CLASSES}, [0.7832995, 0.9813155, 0.5899641, -0.1941351]),
    "deit": ("deit", {}, [0.8042584, -0.7330966, 0.3861555, -0.02292668]),
    "deit_classes": ("deit", {"head": CLASSES}, [0.8273371, -0.9075251, 0.4025189, 0.2422052]),
    "tanh": ("bert", {"head": MASKED, "config": TANH}, [0.7961818, 0.907232, 0.4935411, 0.1152103]),
    "bfloat16": (
        "roberta",
        {"head": CLASSES, "dtype": "bfloat16", "shards": 3},
        [0.822297, 0.1035245, 0.2874177, 0.2129957],
    ),
    "float16": (
        "distilbert",
        {"head": CLASSES, "dtype": "float16", "config": {"activation": "relu"}},
        [0.8375213, -1.646205, 0.1704054, -0.2421777],
    ),
    "no_bias": (
        "vit",
        {"head": CLASSES, "config": {"qkv_bias": False}},
        [0.8390235, -0.08267887, 0.4508035, -0.6283628],
    ),
    "other_sizes": (
        "xlm-roberta",
        {"head": MASKED, "depth": 3, "width": 32, "heads": 4, "hidden": 64, "vocabulary": 90},
        [0.8172859, -1.513728, 0.5202193, -0.2686676],
    ),
    "gpt2": ("gpt2", {}, [0.8402336, -0.2623374, 0.8402336, 0.8334604]),
    "gpt2_classes": ("gpt2", {"head": CLASSES}, [0.8371778, -0.1814195, 0.660618, -0.7518776]),
    "gpt2_next": (
        "gpt2",
        {"head": NEXT, "dtype": "float16", "shards": 3},
        [0.7726379, 0.1355668, 0.435999, 0.2477094],
    ),
    "llama": ("llama", {}, [0.8085477, -2.040447, 0.8085477, 0.2159084]),
    "llama_classes": ("llama", {"head": CLASSES, "dtype": "bfloat16"}, [0.7631679, 2.053563, 0.5787792, -1.229612]),
    "llama_next": ("llama", {"head": NEXT}, [0.8133805, 1.25859, 0.4396004, 0.1185317]),
    "llama_scaled": (
        "llama",
        {"head": NEXT, "config": {"rope_parameters": LLAMA3}},
        [0.8072531, 0.08432648, 0.4559045, -0.1063897],
    ),
    "llama_older": ("llama", {"head": NEXT, "config": OLDER}, [0.821949, -0.3468358, 0.4936962, -0.373463]),
    "llama_biased": ("llama", {"head": NEXT, "config": BIASED}, [0.8226055, -0.845414, 0.4572615, -0.09989174]),
}


def outputs_of(folder, inputs, types):
    """The hidden states of a reference, and what its heads make of the last ones, by the names of make_folders.py."""
    keys = json.loads((folder / "config.json").read_text())
    if keys["model_type"] in DECODERS:
        reference = DecoderReference(folder)
        states = reference.hidden_states(inputs)
        classes, tokens = reference.class_logits(states[-1], inputs), reference.next_logits(states[-1])
        heads = {"class_logits": classes, "token_logits": tokens if "LM" in keys["architectures"][0] else None}
        states = [*states[:-2], states[-1]]  # transformers shows the last block behind the norm alone
    else:
        reference = PublishedReference(folder)
        states = reference.hidden_states(inputs, types)
        classes, tokens = reference.class_logits(states[-1]), reference.token_logits(states[-1])
        heads = {"class_logits": classes, "token_logits": tokens, "pooled": reference.pooled(states[-1])}
    return states, heads


def digest(folder, inputs, types):
    """A few numbers of the last hidden states, and of the head."""
    states, heads = outputs_of(folder, inputs, types)
    final = states[-1]
    head = next((each for each in heads.values() if each is not None), final)
    return [float(np.abs(final).mean()), float(final.flat[5]), float(np.abs(head).mean()), float(head.flat[-1])]


def write_stored(path, name):
    family, options, _ = STORED[name]
    return write_folder(path / f"stored_{name}", family, seed=[*STORED].index(name), **options)


def difference(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.skipif(not (find_spec("torch") and find_spec("transformers")), reason=NO_PEERS)
def test_the_reference_is_that_of_pytorch(tmp_path):
    """Of folders that transformers saves, and of those whose numbers are stored below."""
    for name in STORED:
        write_stored(tmp_path, name)
    output_of(Path(__file__).with_name("make_folders.py"), tmp_path)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) > len(STORED)
    seen = set()
    for folder in folders:
        with np.load(folder / "expected.npz") as file:
            expected = dict(file)
        states, heads = outputs_of(folder, expected.pop("inputs"), expected.pop("types", None))
        actual = {f"state_{place}": state for place, state in enumerate(states)} | {"final": states[-1]} | heads
        assert {name: difference(actual[name], array) for name, array in expected.items()} == pytest.approx(
            dict.fromkeys(expected, 0.0), abs=1e-12
        ), folder.name
        assert all(actual[name] is None or name in expected for name in ("class_logits", "token_logits")), folder.name
        seen |= expected.keys()
    assert seen >= {"state_0", "state_1", "state_2", "final", "pooled", "class_logits", "token_logits"}


@pytest.mark.parametrize("name", STORED)
def test_the_reference_gives_the_stored_numbers(tmp_path, name):
    family, _, numbers = STORED[name]
    assert digest(write_stored(tmp_path, name), *draw_inputs(family)) == pytest.approx(numbers, rel=1e-6)


def states_of(folder, inputs, types=None):
    return PublishedReference(folder).hidden_states(inputs, types)


def test_padding_changes_nothing_before_it(tmp_path):
    folder = write_folder(tmp_path / "roberta", "roberta")
    tokens, _ = draw_inputs("roberta")
    for row, whole in enumerate(states_of(folder, tokens)[-1]):
        length = int((tokens[row] >= 0).sum())
        alone = states_of(folder, tokens[row : row + 1, :length])[-1]
        assert difference(whole[:length], alone[0]) < 1e-14


def test_without_types_all_are_the_first(tmp_path):
    folder = write_folder(tmp_path / "bert", "bert")
    tokens, types = draw_inputs("bert")
    given = states_of(folder, tokens, np.zeros_like(types))
    assert all(map(np.array_equal, states_of(folder, tokens), given))
    assert not np.array_equal(states_of(folder, tokens, types)[0], given[0])


def test_old_names_of_normalisations_are_read(tmp_path):
    folder = write_folder(tmp_path / "bert", "bert", head=MASKED)
    inputs = draw_inputs("bert")
    expected = states_of(folder, *inputs)
    tensors = load_file(folder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    assert old.keys() != tensors.keys()
    write_tensors(folder, old)
    assert all(map(np.array_equal, states_of(folder, *inputs), expected))


def test_shards_are_one_file(tmp_path):
    inputs = draw_inputs("deit")
    one, three = (states_of(write_folder(tmp_path / str(n), "deit", shards=n), *inputs) for n in (1, 3))
    assert all(map(np.array_equal, one, three))


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        (
            "bert",
            {"model_type": "gpt2"},
            r'config\.json has model_type="gpt2".*give a model that has one of "bert", "rob',
        ),
        ("bert", {"position_embedding_type": "relative_key"}, r'="relative_key".* give a model that has "absolute"$'),
        ("roberta", {"is_decoder": True}, r"is_decoder=true.* give a model that has false$"),
        ("vit", {"hidden_act": "quick_gelu"}, r'hidden_act="quick_gelu".* one of "gelu", "gelu_new"'),
        ("distilbert", {"activation": ["gelu"]}, r'activation=\["gelu"\]'),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, family, config, message):
    with pytest.raises(ConfigError, match=message):
        PublishedReference(write_folder(tmp_path / "folder", family, config=config))


def truncate(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def lose_a_tensor(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["encoder.layer.1.output.dense.bias"]
    write_tensors(folder, tensors)


def point_outside(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"embeddings.LayerNorm.weight": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, r"model\.safetensors can't be read \("),
        (lose_a_tensor, r"has no tensor encoder\.layer\.1\.output\.dense\.bias, .*: give the whole folder"),
        (point_outside, r"index\.json names \.\./other\.safetensors, which is not in this folder: give the whole"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json can't be read \("),
        (lambda folder: (folder / "config.json").write_text("[]"), r"config\.json has no keys: give the whole folder"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors can't be read \("),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, damage, message):
    folder = write_folder(tmp_path / "folder", "bert")
    damage(folder)
    with pytest.raises(DataError, match=message):
        states_of(folder, *draw_inputs("bert"))


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "folder", "bert")
    monkeypatch.setattr("accumtrain.measure.verify.published.files.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"folder needs the library safetensors: pip install 'accumtrain\[pretrained\]'"
    ):
        PublishedReference(folder)
