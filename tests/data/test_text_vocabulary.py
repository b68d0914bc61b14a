"""Vocabularies: bytes, ids without a tokenizer, and a file of the library tokenizers."""

import json
import re
from dataclasses import replace

import pytest

from accumtrain.data.config import TextsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.text.vocabulary import PADDING, Vocabulary, number_ids, open_vocabulary
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.fields import TOKENS

TEXTS = ["", "plain", "é € 🙂", "two\nlines\t"]


def write_tokenizer(file, *, mask="[MASK]"):
    """A tokenizer of whole words, as its library stores it: the word at place n has the id n."""
    words = ["[UNK]", "the", "cat", "sat"]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [{"id": len(words), "content": mask, **special}] if mask else []
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: place for place, word in enumerate(words)},
            "unk_token": "[UNK]",
        },
    }
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_are_those_of_utf_8(text):
    vocabulary = open_vocabulary("bytes")
    assert (vocabulary.size, vocabulary.mask, vocabulary.special) == (257, 256, (256,))
    assert vocabulary.encode(text) == list(text.encode("utf-8"))
    assert vocabulary.decode([*text.encode("utf-8"), PADDING]) == text


def test_a_mask_is_shown_and_half_a_character_too():
    assert open_vocabulary("bytes").decode([97, 256, 0xC3]) == "a[MASK]\N{REPLACEMENT CHARACTER}"


def test_ids_without_a_tokenizer_have_no_texts():
    vocabulary = number_ids(7)
    assert (vocabulary.size, vocabulary.mask, vocabulary.special) == (8, 7, (7,))
    assert vocabulary.decode([3, 7, PADDING]) == "3 7"
    with pytest.raises(ConfigError, match=r"ids without a tokenizer.*give ids, as tokens \[N, T\] of an \.npz file"):
        vocabulary.encode("text")


@pytest.mark.parametrize("vocabulary", [open_vocabulary("bytes"), number_ids(3)])
def test_json_has_all_of_it(vocabulary):
    assert Vocabulary.from_json(json.loads(json.dumps(vocabulary.as_json())), "inputs.vocabulary") == vocabulary


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"size": 0}, "kept.size=0: must be at least 1 and at most 2147483647"),
        ({"size": 2**62}, "kept.size=4611686018427387904: must be at least 1 and at most 2147483647"),
        ({"special": "x"}, "kept.special=x: must be a list of whole numbers"),
        ({"special": [0, True]}, "kept.special[1]=true: must be a whole number"),
        ({"special": [9]}, "kept.special=9: must be below kept.size=4"),
        ({"mask": None}, "kept.mask=null: must be a whole number"),
        ({"mask": 4}, "kept.mask=4: must be below kept.size=4"),
        ({"tokenizer": "bytes"}, "kept.size=4: must be 257 of kept.tokenizer=bytes"),
    ],
)
def test_damaged_json_is_refused(odd, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Vocabulary.from_json({**number_ids(3).as_json(), **odd}, "kept")


# ---- the library tokenizers ----


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>", None])
def test_the_mask_of_a_file_is_taken_or_added(tmp_path, mask):
    pytest.importorskip("tokenizers")
    vocabulary = open_vocabulary(str(write_tokenizer(tmp_path / "tokenizer.json", mask=mask)))
    assert (vocabulary.size, vocabulary.mask, vocabulary.special) == (5, 4, (4,))
    assert vocabulary.encode("the dog sat") == [1, 0, 3], "without the file's own truncation to two tokens"
    assert vocabulary.encode_with_masks("the [MASK] sat") == [1, 4, 3]
    assert vocabulary.encode(f"the {mask} sat") == ([1, 4, 3] if mask else [1, 0, 3])
    assert vocabulary.decode([1, 2, PADDING]) == "the cat"
    assert vocabulary.decode([1, 4, 4, 3]) == f"the {' '.join([mask or '[MASK]'] * 2)} sat"
    again = Vocabulary.from_json(json.loads(json.dumps(vocabulary.as_json())), "inputs.vocabulary")
    assert again.encode("the cat") == [1, 2]


def change(file, **parts):
    """Replace parts of a tokenizer's file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))
    return file


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
@pytest.mark.parametrize("special", [True, False])
def test_a_file_keeps_the_flags_of_its_tokens(tmp_path, flag, special):
    tokenizers = pytest.importorskip("tokenizers")
    file = write_tokenizer(tmp_path / "tokenizer.json", mask="<mask>")
    (added,) = json.loads(file.read_text())["added_tokens"]
    blanks = {"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False}
    change(file, added_tokens=[{**added, flag: True, "special": special}], pre_tokenizer=blanks, truncation=None)
    vocabulary, own = open_vocabulary(str(file)), tokenizers.Tokenizer.from_file(str(file))
    for text in ("the <mask> sat", "the<mask>", "<mask>s", "cat  <mask>  <mask>"):
        assert vocabulary.encode(text) == own.encode(text, add_special_tokens=False).ids
        assert vocabulary.encode_with_masks(text.replace("<mask>", "[MASK]")) == vocabulary.encode(text)
    assert (vocabulary.size, vocabulary.mask, vocabulary.special) == (5, 4, (4,))


def replace_all(pattern, content, count):
    return {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": pattern, "content": content} for _ in range(count)],
    }


GROWING = {
    "by a text": {"normalizer": replace_all({"String": "a"}, "aa", 30)},
    "by a pattern": {"normalizer": replace_all({"Regex": "a"}, "aa", 30)},
    "by one long text": {"normalizer": replace_all({"String": "a"}, "a" * 100_000, 1)},
    "by texts before them": {"normalizer": {"type": "Prepend", "prepend": "a" * 100_000}},
    "when they are decoded": {
        "decoder": {"type": "Sequence", "decoders": replace_all({"String": "a"}, "aa", 30)["normalizers"]}
    },
}


@pytest.mark.parametrize("how", GROWING)
def test_a_tokenizer_that_makes_texts_grow_is_refused(tmp_path, how):
    file = change(write_tokenizer(tmp_path / "tokenizer.json"), **GROWING[how])
    with pytest.raises(ConfigError, match=r"its replacements make a text up to .* times as long"):
        open_vocabulary(str(file))


def test_a_tokenizer_draws_no_tokens(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json")
    model = {"type": "BPE", "dropout": 0.5, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    vocabulary = open_vocabulary(str(change(file, model=model, added_tokens=[])))
    assert vocabulary.encode("ab" * 50) == [2] * 50
    assert replace(vocabulary).encode("ab" * 50) == [2] * 50, "nor does it in a run that has kept it"


def test_replacements_of_trained_tokenizers_are_none_that_grow(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json")
    for normalizer in (replace_all({"Regex": " {2,}"}, "\u2581", 3), replace_all({"String": "``"}, '"', 30)):
        assert open_vocabulary(str(change(file, normalizer=normalizer))).encode("the cat") == [1, 2]


def test_an_id_beyond_int32_is_refused(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json")
    model = {"type": "WordLevel", "vocab": {"the": 0, "cat": 2**32 - 1}, "unk_token": "the"}
    with pytest.raises(ConfigError, match=r"has the id 4294967295: the largest one is"):
        open_vocabulary(str(change(file, model=model, added_tokens=[])))


def test_a_vocabulary_smaller_than_its_tokenizer_is_damaged(tmp_path):
    vocabulary = open_vocabulary(str(write_tokenizer(tmp_path / "tokenizer.json")))
    with pytest.raises(CheckpointError, match=r"tokenizer of the run is damaged .it has ids beyond the 3 of the run"):
        replace(vocabulary, size=3).encode("the")


BAD_TEXTS = {
    "without a token for unknown words": ({"type": "Whitespace"}, "the dog"),
    "whose pattern takes too long": (
        {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        "a" * 40 + "b",
    ),
}


@pytest.mark.parametrize("how", BAD_TEXTS)
def test_a_text_without_tokens_is_told_by_its_line_or_left_out(tmp_path, how):
    pre_tokenizer, text = BAD_TEXTS[how]
    model = {"type": "WordLevel", "vocab": {"the": 0, "cat": 1}, "unk_token": "[UNK]"}
    file = change(write_tokenizer(tmp_path / "tokenizer.json"), model=model, pre_tokenizer=pre_tokenizer)
    (tmp_path / "texts.txt").write_text("\n".join(["the", "cat", text, "the", "cat", "the"]))
    config = TextsConfig(path=str(tmp_path / "texts.txt"), tokenizer=str(file), val_fraction=0.0)
    with pytest.raises(DataError, match=r"texts\.txt, line 3 can't be made tokens of .*: give the tokenizer a token"):
        open_data(config, 0, TOKENS)
    data = open_data(replace(config, on_error="skip"), 0, TOKENS)
    assert [example["name"] for example in data.skipped] == [f"{tmp_path}/texts.txt, line 3"]


@pytest.mark.parametrize(("content", "message"), [("{}", "is no file of the library tokenizers"), ("", "is empty")])
def test_another_file_is_refused(tmp_path, content, message):
    pytest.importorskip("tokenizers")
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"data\.tokenizer=.*odd\.json {message}"):
        open_vocabulary(str(tmp_path / "odd.json"))


def test_a_missing_file_and_a_missing_library_are_told(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"data\.tokenizer=absent\.json can't be read: No such file"):
        open_vocabulary("absent.json")
    file = write_tokenizer(tmp_path / "tokenizer.json")
    monkeypatch.setattr("accumtrain.data.text.tokenizer_files.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'accumtrain\[tokenizers\]'"):
        open_vocabulary(str(file))
