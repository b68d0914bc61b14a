"""Vocabularies: bytes, ids without a tokenizer, and a file of the library tokenizers."""

import json
import re

import pytest

from accumtrain.data.text.vocabulary import PADDING, Vocabulary, number_ids, open_vocabulary
from accumtrain.errors import ConfigError

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
    ("change", "message"),
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
def test_damaged_json_is_refused(change, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Vocabulary.from_json({**number_ids(3).as_json(), **change}, "kept")


# ---- the library tokenizers ----


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>", None])
def test_the_mask_of_a_file_is_taken_or_added(tmp_path, mask):
    pytest.importorskip("tokenizers")
    vocabulary = open_vocabulary(str(write_tokenizer(tmp_path / "tokenizer.json", mask=mask)))
    assert (vocabulary.size, vocabulary.mask, vocabulary.special) == (5, 4, (4,))
    assert vocabulary.encode("the dog sat") == [1, 0, 3], "without the file's own truncation to two tokens"
    assert vocabulary.encode(f"the {mask or '[MASK]'} sat") == [1, 4, 3]
    assert vocabulary.decode([1, 2, PADDING]) == "the cat"
    again = Vocabulary.from_json(json.loads(json.dumps(vocabulary.as_json())), "inputs.vocabulary")
    assert again.encode("the cat") == [1, 2]


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
    monkeypatch.setattr("accumtrain.data.text.vocabulary.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'accumtrain\[tokenizers\]'"):
        open_vocabulary(str(file))
