"""Texts as rows of tokens and of those that follow: every pair once, what ends a text, prompts, what is held out."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tokenizers import Tokenizer, models

from accumtrain.data.config import NpzConfig, TableConfig, TextsConfig
from accumtrain.data.inputs.tokens import APART, PACKED
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.text import rows
from accumtrain.data.text.config import DocumentRows
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import TOKENS
from tests.data.word_tokenizer import CLS_PAIR, WORDS, make_tokenizer, save, template

LENGTH = 16
FIRST = ord("^")  # with which each text begins, and nowhere else
TEXTS = [f"^{number}{chr(97 + number % 26) * (number * 7 % 41)}" for number in range(60)]
CLS, SEP, MASK, A, B, C = range(1, 7)
both_ways = pytest.mark.parametrize("packing", [True, False])


def opened(config, *, packing=True, end=None):
    return open_data(config, 0, TOKENS, rows=DocumentRows(packing, end))


def lines(folder, texts=TEXTS, **keys):
    (folder / "lines.txt").write_text("\n".join(texts))
    return TextsConfig(path=str(folder / "lines.txt"), **{"length": LENGTH, **keys})


def rows_of(split):
    stored, again = split.read(tf.range(split.size, dtype=tf.int64))
    np.testing.assert_array_equal(stored, again)
    assert (stored.dtype, stored.shape[1:]) == (tf.int32, (3, split.shape[1]))
    return stored.numpy()


def pairs_of(split):
    """All pairs of a split in their order, [2, any]."""
    stored = rows_of(split)[:, :2].transpose(1, 0, 2).reshape(2, -1)
    return stored[:, stored[0] >= 0]


def texts_of(split):
    """The texts whose pairs the rows hold, in their order. Each is checked to be whole."""
    tokens, following = pairs_of(split)
    begins = np.flatnonzero(tokens == FIRST)
    found = []
    for first, last in zip(begins, [*begins[1:], len(tokens)], strict=True):
        np.testing.assert_array_equal(tokens[first + 1 : last], following[first : last - 1])
        found.append(bytes([FIRST, *following[first:last].tolist()]).decode())
    return found


# ---- every pair once ----


@both_ways
def test_every_token_but_the_first_of_a_text_is_told_once(tmp_path, packing):
    data = opened(lines(tmp_path), packing=packing)
    found = {name: texts_of(split) for name, split in data.splits.items()}
    assert sorted(text for texts in found.values() for text in texts) == sorted(TEXTS)
    for texts in found.values():
        assert texts == [text for text in TEXTS if text in texts], "in the order of the file"
    assert (data.shape, data.num_classes, data.inputs.stored_shape) == ((LENGTH,), 257, (3, LENGTH))
    assert data.inputs.rows == (PACKED if packing else APART)


def test_packed_rows_are_full_and_number_their_documents(tmp_path):
    for split in opened(lines(tmp_path)).splits.values():
        stored = rows_of(split)
        assert split.size == -(-sum(len(text) - 1 for text in texts_of(split)) // LENGTH)
        filled = stored >= 0
        assert filled[:-1].all()
        assert (filled[-1] == filled[-1, 0]).all()
        assert (np.diff(filled[-1, 0].astype(int)) <= 0).all(), "padding is behind"
        for tokens, _, documents in stored:
            count = np.cumsum(tokens == FIRST) - int(tokens[0] == FIRST)
            np.testing.assert_array_equal(documents[tokens >= 0], count[tokens >= 0])


def test_texts_apart_begin_rows_and_are_cut_into_pieces(tmp_path):
    split = opened(lines(tmp_path), packing=False).train
    stored = rows_of(split)
    assert split.size == sum(-(-(len(text) - 1) // LENGTH) for text in texts_of(split))
    assert set(stored[:, 2][stored[:, 0] >= 0].tolist()) == {0}
    inside = stored[:, 0] == FIRST
    assert not inside[:, 1:].any()
    np.testing.assert_array_equal(stored[:, 0] >= 0, stored[:, 1] >= 0)


def test_one_long_text_fills_rows_alone(tmp_path):
    texts = [*TEXTS[:4], "^" + "x" * 100, *TEXTS[4:9]]
    (split,) = (
        split
        for split in opened(lines(tmp_path, texts, val_fraction=0.0)).splits.values()
        if any("xx" in text for text in texts_of(split))
    )
    alone = [row for row in rows_of(split) if (row[0] == ord("x")).all()]
    assert len(alone) >= 4
    assert {number for row in alone for number in row[2].tolist()} == {0}


def test_a_batch_names_documents_where_a_row_may_have_several(tmp_path):
    config = lines(tmp_path)
    packed = next(iter(make_eval_batches(opened(config), batch=3)))
    stored = rows_of(opened(config).test)[:3]
    np.testing.assert_array_equal(packed["inputs"]["tokens"], stored[:, 0])
    np.testing.assert_array_equal(packed["inputs"]["documents"], stored[:, 2])
    apart = next(iter(make_eval_batches(opened(config, packing=False), batch=3)))
    assert apart["inputs"].shape == (3, LENGTH)


def test_the_order_is_that_of_seed_and_position(tmp_path):
    data = opened(lines(tmp_path))

    def read(batch, first, count):
        batches = make_train_batches(data, batch=batch, first=first, seed=3).take(count).as_numpy_iterator()
        return np.concatenate([each["targets"] for each in batches])

    whole = read(12, 0, 8)
    np.testing.assert_array_equal(whole, read(4, 0, 24))
    np.testing.assert_array_equal(whole[36:], read(12, 36, 5))
    assert sorted(map(bytes, whole[: data.train.size])) == sorted(map(bytes, rows_of(data.train)))


# ---- what is held out ----


@both_ways
def test_a_text_is_in_one_split(tmp_path, packing):
    config = lines(tmp_path, test_fraction=0.25, val_fraction=0.2)
    data = opened(config, packing=packing)
    found = {name: set(texts_of(split)) for name, split in data.splits.items()}
    assert {name: len(texts) for name, texts in found.items()} == {"train": 36, "val": 9, "test": 15}
    assert not found["train"] & (found["val"] | found["test"])
    assert not found["val"] & found["test"]
    assert any(note.startswith("9 training texts are held out to validate on") for note in data.notes), data.notes
    other = opened(config, packing=not packing)
    assert {name: set(texts_of(split)) for name, split in other.splits.items()} == found
    assert {key: value for key, value in data.fingerprint.items() if "texts" in key} == {
        key: value for key, value in other.fingerprint.items() if "texts" in key
    }


def test_files_of_splits_are_splits(tmp_path):
    for name, texts in (("train", TEXTS[:30]), ("val", TEXTS[30:40]), ("test", TEXTS[40:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts))
    data = opened(TextsConfig(path=str(tmp_path), length=LENGTH))
    assert {name: texts_of(split) for name, split in data.splits.items()} == {
        "train": TEXTS[:30],
        "val": TEXTS[30:40],
        "test": TEXTS[40:],
    }
    with pytest.raises(ConfigError, match=r"data\.val_fraction=0\.2: the data has 10 validation examples of its own"):
        opened(TextsConfig(path=str(tmp_path), val_fraction=0.2))


def test_groups_of_a_table_are_not_torn(tmp_path):
    table = [{"text": text, "author": f"author {number % 9}"} for number, text in enumerate(TEXTS)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, table)))
    data = opened(TableConfig(path=str(tmp_path / "t.jsonl"), text_column="text", group="author", val_fraction=0.2))
    authors = {row["text"]: row["author"] for row in table}
    by_split = [{authors[text] for text in texts_of(split)} for split in data.splits.values()]
    assert len(by_split) == 3
    assert sum(map(len, by_split)) == 9


def test_a_single_text_to_train_on_is_not_divided(tmp_path):
    config = lines(tmp_path, TEXTS[:2])
    with pytest.raises(DataError, match=r"data\.val_fraction=0\.1: there is a single text or group to train on"):
        opened(config)
    assert opened(replace(config, val_fraction=0.0)).train.size == 1


# ---- texts that can't be used ----


def test_a_text_of_one_token_is_left_out_and_told(tmp_path):
    data = opened(lines(tmp_path, [*TEXTS[:3], "x", *TEXTS[3:20]]))
    assert sorted(text for split in data.splits.values() for text in texts_of(split)) == sorted(TEXTS[:20])
    assert data.skipped == []
    assert "1 text of a single token, with none behind it to learn, left out" in data.notes
    with pytest.raises(DataError, match="none of 3 texts can be used"):
        opened(lines(tmp_path, ["x", "y", "z", "v"], on_error="skip", test_fraction=0.25))


def test_rows_without_room_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "spare_bytes", lambda: 1000)
    with pytest.raises(DataError, match=r"data\.length=16: .* rows of so many tokens take"):
        opened(lines(tmp_path))


@pytest.mark.parametrize(("length", "dtype"), [(LENGTH, np.int16), (2**15 + 1, np.int32)])
def test_rows_are_of_the_least_type_and_in_memory_once(tmp_path, length, dtype):
    """Their reading and the digest of the texts do not change by that."""
    train = opened(lines(tmp_path, length=length)).train
    assert (train.tokens.dtype, train.tokens.min()) == (dtype, -1)
    assert np.shares_memory(train.tokens, np.asarray(train._tokens))
    assert train.tokens.tolist() == rows_of(train).tolist()


# ---- what stands around texts ----


def words(tmp_path, *, special=(), post_processor=None):
    tokenizer = make_tokenizer(post_processor)
    tokenizer.add_special_tokens(list(special))
    return save(tokenizer, tmp_path / "tokenizer.json")


WORDY = ["a b c", "c", "b b", "a c c a"]


def documents_of(data):
    """The whole documents of texts apart, as lists of tokens."""
    return [[row[0, 0], *row[1][row[0] >= 0]] for split in data.splits.values() for row in rows_of(split).astype(int)]


def test_the_template_is_around_each_text(tmp_path):
    tokenizer = words(tmp_path, post_processor=template(**CLS_PAIR), special=["</s>"])
    data = opened(lines(tmp_path, WORDY, tokenizer=tokenizer, val_fraction=0.0), packing=False)
    assert sorted(documents_of(data)) == [
        [CLS, A, B, C, SEP],
        [CLS, A, C, C, A, SEP],
        [CLS, B, B, SEP],
        [CLS, C, SEP],
    ]
    assert data.inputs.vocabulary.end is None
    assert not any("task.end" in note for note in data.notes)


@pytest.mark.parametrize("name", ["</s>", "<|endoftext|>", "<|end_of_text|>"])
def test_a_well_known_token_ends_each_text(tmp_path, name):
    config = lines(tmp_path, WORDY, tokenizer=words(tmp_path, special=[name]), val_fraction=0.0)
    data = opened(config, packing=False)
    end = len(WORDS)
    assert sorted(documents_of(data)) == [[A, B, C, end], [A, C, C, A, end], [B, B, end], [C, end]]
    assert f"each text ends with {name} (task.end)" in data.notes
    assert data.inputs.vocabulary.as_json()["end"] == end


def test_the_end_can_be_named(tmp_path):
    tokenizer = words(tmp_path, post_processor=template(single="[CLS] $A", pair=CLS_PAIR["pair"]))
    config = lines(tmp_path, WORDY, tokenizer=tokenizer, val_fraction=0.0)
    assert [CLS, C, SEP] in documents_of(opened(config, packing=False, end="[SEP]"))
    data = opened(config, packing=False)
    assert [CLS, C] in documents_of(data)
    assert any(note.startswith("texts have no token at their end") for note in data.notes)
    with pytest.raises(ConfigError, match=r"task\.end=\[SEQ\]: data.tokenizer has no such token; did you mean \[SEP\]"):
        opened(config, end="[SEQ]")
    with pytest.raises(ConfigError, match=r"task\.end=x: bytes have no such token"):
        opened(lines(tmp_path), end="x")
    without_mask = save(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), tmp_path / "small.json")
    with pytest.raises(ConfigError, match=r"task\.end=x: data.tokenizer has no such token"):
        opened(replace(config, tokenizer=without_mask), end="x")
    several = words(tmp_path, special=["</s>", "<eos>"])
    with pytest.raises(ConfigError, match=r"has </s> and <eos>, and one ends a text: say which, task\.end='</s>'"):
        opened(replace(config, tokenizer=several))
    assert documents_of(opened(replace(config, tokenizer=several), end="<eos>"))[0][-1] == len(WORDS) + 1


# ---- prompts ----


@both_ways
@pytest.mark.parametrize("before", ["", "[CLS] "])
def test_answers_are_told_and_prompts_are_not(tmp_path, packing, before):
    tokenizer = words(tmp_path, post_processor=template(single=f"{before}$A [SEP]", pair=CLS_PAIR["pair"]))
    table = [{"prompt": "a " * (1 + number % 5), "answer": "b c" if number % 2 else "b"} for number in range(20)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, table)))
    keys = {"text_column": "answer", "prompt_column": "prompt", "tokenizer": tokenizer}
    config = TableConfig(path=str(tmp_path / "t.jsonl"), length=5, val_fraction=0.0, **keys)
    data = opened(config, packing=packing)
    told = sum(len(row["answer"].split()) + 1 for row in table)
    for split in data.splits.values():
        tokens, following = pairs_of(split)
        assert set(following.tolist()) <= {-1, B, C, SEP}
        is_prompt = np.isin(tokens[1:], [A, CLS]) & (following[:-1] != SEP)
        assert (following[:-1][is_prompt] == -1).all()
    assert sum(split.targets for split in data.splits.values()) == told
    assert sum(split.bytes_told for split in data.splits.values()) == sum(len(row["answer"]) for row in table)


def test_a_row_without_prompt_or_answer_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("prompt,answer\n" + "why so,because\n" * 5 + "why,\n" + ",because\n")
    config = TableConfig(path=str(tmp_path / "t.csv"), text_column="answer", prompt_column="prompt")
    with pytest.raises(DataError, match="has a pair without its second text"):
        opened(config)
    assert len(opened(replace(config, on_error="skip")).skipped) == 2
    with pytest.raises(ConfigError, match=r"data\.prompt_column=prompt: is for task=next_token"):
        open_data(config, 0, TOKENS)
    with pytest.raises(ConfigError, match="each prompt has one answer"):
        replace(config, text_column=None).check()


# ---- ids ----


def test_rows_of_ids_are_documents(tmp_path):
    tokens = np.full([12, 9], -1, np.int32)
    for number, row in enumerate(tokens):
        row[: 2 + number % 8] = number
    np.savez(tmp_path / "t.npz", tokens=tokens)
    config = NpzConfig(path=str(tmp_path / "t.npz"), padding=-1, length=4, val_fraction=0.0)
    data = opened(config)
    pairs = np.concatenate([pairs_of(split) for split in data.splits.values()], axis=1)
    np.testing.assert_array_equal(pairs[0], pairs[1])
    assert np.bincount(pairs[0]).tolist() == [1 + number % 8 for number in range(12)]
    assert data.train.bytes_told is None
    with pytest.raises(ConfigError, match=r"task\.end=x: the rows of an \.npz file are learned as they are"):
        opened(config, end="x")


# ---- bytes that are told ----


def test_bytes_of_texts_are_those_behind_what_is_given(tmp_path):
    texts = ["caf\u00e9 au lait", "\u00e9t\u00e9", *TEXTS[:20]]
    data = opened(lines(tmp_path, texts))
    assert sum(split.bytes_told for split in data.splits.values()) == sum(len(text.encode()) - 1 for text in texts)
    assert [split.targets for split in data.splits.values()] == [split.bytes_told for split in data.splits.values()]
    wordy = [*WORDY, "unknown words"]
    config = lines(tmp_path, wordy, tokenizer=words(tmp_path, special=["</s>"]), val_fraction=0.0)
    behind = [len(text) - len(text.split()[0]) for text in wordy]
    assert sum(split.bytes_told for split in opened(config).splits.values()) == sum(behind)
    framed = replace(config, tokenizer=words(tmp_path, post_processor=template(**CLS_PAIR)))
    assert sum(split.bytes_told for split in opened(framed).splits.values()) == sum(map(len, wordy))


def test_bytes_are_not_known_of_half_a_character(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    of_bytes = {token: number for number, token in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(of_bytes, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    keys = {"tokenizer": save(tokenizer, tmp_path / "tokenizer.json"), "val_fraction": 0.0}
    assert opened(lines(tmp_path, ["ab"] * 5, **keys)).train.bytes_told == 4
    assert opened(lines(tmp_path, ["a\u00e9"] * 5, **keys)).train.bytes_told == 8
    assert opened(lines(tmp_path, ["\u00e9b"] * 5, **keys)).train.bytes_told is None
