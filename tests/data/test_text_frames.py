"""Special tokens in the examples of a data set, pairs of texts, and what a trained run is asked of both."""

import datetime
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from accumtrain.data.config import NpzConfig, TableConfig, TextsConfig
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.sources.labelled import open_labelled
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import TOKENS
from accumtrain.tasks.config import MaskedTokensConfig
from accumtrain.tasks.texts.masking import mask_tokens
from tests.data.word_tokenizer import CLS_PAIR, make_tokenizer, save, template

ROWS = [("a b c a", "b c", "x"), ("c", "a a a", "y"), ("b", "b", "x"), ("a c", "b", "y")] * 3
CLS, SEP, MASK, A, B, C = range(1, 7)
PAIRS = ["premise", "hypothesis"]


@pytest.fixture
def tokenizer(tmp_path):
    return save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "tokenizer.json")


@pytest.fixture
def table(tmp_path, tokenizer):
    """Make the keys of a table of pairs with classes."""
    lines = [json.dumps(dict(zip((*PAIRS, "label"), row, strict=True))) for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    own = {"path": str(tmp_path / "rows.jsonl"), "label_column": "label", "tokenizer": tokenizer, "val_fraction": 0.0}
    return lambda **keys: TableConfig(**{**own, **keys})


def read_all(split):
    inputs, targets = split.read(tf.range(split.size, dtype=tf.int64))
    return inputs.numpy().tolist(), targets.numpy().tolist()


def read_both(data):
    return [row for split in data.splits.values() for row in read_all(split)[0]]


def test_single_texts_are_framed_and_cut(table):
    data = open_data(table(text_column="premise", length=5), 0)
    assert {tuple(row) for row in read_both(data)} == {
        (CLS, A, B, C, SEP),
        (CLS, C, SEP, -1, -1),
        (CLS, B, SEP, -1, -1),
        (CLS, A, C, SEP, -1),
    }
    assert data.inputs.describe() == "5 tokens of 7"
    note = "3 of 12 texts are cut to 5 tokens, 2 special ones among them (data.length); "
    assert any(each.startswith(note) for each in data.notes), data.notes
    assert max(data.train.whole_lengths) == 6


def test_pairs_have_types_and_the_longer_text_is_cut(table):
    data = open_data(table(text_column=PAIRS, length=7), 0)
    assert {tuple(map(tuple, row)) for row in read_both(data)} == {
        ((CLS, A, B, SEP, B, C, SEP), (0, 0, 0, 0, 1, 1, 1)),
        ((CLS, C, SEP, A, A, A, SEP), (0, 0, 0, 1, 1, 1, 1)),
        ((CLS, B, SEP, B, SEP, -1, -1), (0, 0, 0, 1, 1, 0, 0)),
        ((CLS, A, C, SEP, B, SEP, -1), (0, 0, 0, 0, 1, 1, 0)),
    }
    assert (data.shape, data.inputs.describe()) == ((7,), "7 tokens of 7, in pairs of texts")
    assert any("3 of 12 pairs are cut to 7 tokens, 3 special ones among them" in note for note in data.notes)


@pytest.mark.parametrize("buckets", [[], [5, 6]])
def test_the_types_of_pairs_reach_the_model(table, buckets):
    data = open_data(table(text_column=PAIRS, length=9, buckets=buckets), 0)
    for batch in make_eval_batches(data, batch=2).as_numpy_iterator():
        tokens, types = batch["inputs"]["tokens"], batch["inputs"]["types"]
        longest = int((tokens >= 0).sum(axis=1).max())
        width = next((bucket for bucket in buckets if bucket >= longest), 9)
        assert tokens.shape == types.shape == (2, width)
        second = np.cumsum(tokens == SEP, axis=1) - (tokens == SEP) == 1
        np.testing.assert_array_equal(types, second & (tokens >= 0))


def test_pairs_need_a_tokenizer_that_separates_them(table):
    with pytest.raises(ConfigError, match=r"data\.text_column=\[premise,hypothesis\]: data\.tokenizer=bytes puts no"):
        open_data(table(text_column=PAIRS, tokenizer="bytes"), 0)


@pytest.mark.parametrize("columns", [["premise"], ["premise", "premise"], [*PAIRS, "label"], []])
def test_other_numbers_of_columns_are_refused(table, columns):
    with pytest.raises(ConfigError, match=r"must be a column of texts, or two different ones, of pairs"):
        table(text_column=columns).check()


def test_masked_tokens_are_of_single_texts(table):
    with pytest.raises(ConfigError, match=r"the tokens of texts are learned; name one column of texts"):
        open_data(table(text_column=PAIRS, label_column=None), 0, TOKENS)


@pytest.mark.parametrize(("columns", "least"), [("premise", 3), (PAIRS, 5)])
def test_a_length_without_room_for_texts_is_refused(table, columns, least):
    with pytest.raises(ConfigError, match=rf"data\.length={least - 1}: the tokenizer adds .* give at least {least}$"):
        open_data(table(text_column=columns, length=least - 1), 0)
    assert open_data(table(text_column=columns, length=least), 0).shape == (least,)


def test_a_pair_without_one_of_its_texts_is_bad(table, tmp_path):
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    lines[0] = json.dumps({"premise": "a", "hypothesis": None, "label": "x"})
    lines[1] = json.dumps({"premise": "", "hypothesis": "a", "label": "x"})
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"row 1 has a pair without its second text: replace or remove it"):
        open_data(table(text_column=PAIRS), 0)
    skipped = open_data(table(text_column=PAIRS, on_error="skip"), 0).skipped
    assert sorted(each["reason"] for each in skipped) == [
        "has a pair without its first text",
        "has a pair without its second text",
    ]


# ---- masked tokens ----


def test_every_piece_is_framed_and_no_special_token_is_masked(tmp_path, tokenizer):
    for number, text in enumerate(["a b c a b", "c", "b b", "a c b"] * 5):
        (tmp_path / f"{number}.txt").write_text(text)
    (tmp_path / "texts").mkdir()
    for file in tmp_path.glob("*.txt"):
        file.rename(tmp_path / "texts" / file.name)
    data = open_data(
        TextsConfig(path=str(tmp_path / "texts"), length=4, tokenizer=tokenizer, val_fraction=0.0), 0, TOKENS
    )
    rows = {tuple(row) for row in read_both(data)}
    assert {(CLS, A, B, SEP), (CLS, C, A, SEP), (CLS, B, SEP, -1), (CLS, C, SEP, -1)} <= rows
    assert all(row[0] == CLS and row.count(SEP) == 1 for row in rows)
    assert any("pieces of up to 4 tokens, 2 special ones among them" in note for note in data.notes)
    tokens, key = data.train.read(tf.range(data.train.size, dtype=tf.int64))[0], tf.range(data.train.size)
    config = MaskedTokensConfig(share=0.9, masked=0.5, random=0.5)
    masked = mask_tokens(tokens, tf.cast(key, tf.uint64), data.inputs.vocabulary, config, 4)
    is_special = np.isin(tokens, [CLS, SEP])
    np.testing.assert_array_equal(masked.tokens.numpy()[is_special], tokens.numpy()[is_special])
    assert not {CLS, SEP} & {*masked.ids.numpy().flat}
    assert not {CLS, SEP} & {*masked.tokens.numpy()[~is_special].flat}, "none is drawn at random"


def test_ids_of_arrays_have_no_frame(tmp_path, tokenizer):
    np.savez(tmp_path / "t.npz", tokens=np.array([[A, B], [B, C]] * 3), labels=np.array([0, 1] * 3))
    data = open_data(NpzConfig(path=str(tmp_path / "t.npz"), tokenizer=tokenizer, val_fraction=0.0), 0)
    assert {tuple(row) for row in read_both(data)} == {(A, B), (B, C)}


# ---- a run ----


def train_on(data, config):
    """What a run keeps of its data, read again from JSON."""
    kept = json.loads(json.dumps(TrainedOn(data.inputs, data.targets, data.classes).as_json()))
    return TrainedOn.from_json(kept, config)


def test_a_run_frames_the_texts_that_it_is_asked(tmp_path, table):
    config = table(text_column="premise", length=5)
    inputs = train_on(open_data(config, 0), config).inputs
    (tmp_path / "new.txt").write_text("a b c a\nb\n")
    np.savez(tmp_path / "ids.npz", tokens=np.array([[A, B]]))
    asked = inputs.open_named([str(tmp_path / "new.txt"), str(tmp_path / "ids.npz")], config, "predict.input")
    rows, indices = read_all(asked.data.test)
    assert rows == [[CLS, A, B, C, SEP], [CLS, B, SEP, -1, -1], [A, B, -1, -1, -1]]
    assert indices == [0, 1, 2]
    assert asked.data.notes == ["1 of 3 texts is cut to 5 tokens, 2 special ones among them"]
    assert inputs.beginnings(asked.data.test, [0, 1]) == ["a b c", "b"]


def test_masks_and_special_tokens_must_fit(tmp_path, tokenizer):
    (tmp_path / "new.txt").write_text("a [MASK]\na b [MASK]\n")
    config = TextsConfig(path="texts", tokenizer=tokenizer)
    vocabulary = open_data(write_lines(tmp_path, tokenizer), 0, TOKENS).inputs.vocabulary
    asked = Tokens((4,), vocabulary, masks=1).open_named([str(tmp_path / "new.txt")], config, "predict.input")
    assert read_all(asked.data.test)[0][0] == [CLS, A, MASK, SEP]
    (bad,) = asked.data.test.skipped.values()
    assert bad.reason == "has 5 tokens, and the model takes 4"


def write_lines(tmp_path, tokenizer):
    (tmp_path / "lines.txt").write_text("a\nb\nc\na b\n")
    return TextsConfig(path=str(tmp_path / "lines.txt"), tokenizer=tokenizer, val_fraction=0.0)


def test_a_run_on_pairs_is_asked_tables_of_pairs(tmp_path, table):
    config = table(text_column=PAIRS, length=7)
    inputs = train_on(open_data(config, 0), config).inputs
    assert inputs.pairs
    (tmp_path / "new.csv").write_text("hypothesis,premise\nb c,a b c a\n")
    asked = inputs.open_named([str(tmp_path / "new.csv")], config, "predict.input")
    assert read_all(asked.data.test)[0] == [[[CLS, A, B, SEP, B, C, SEP], [0, 0, 0, 0, 1, 1, 1]]]
    for file, content in {"new.txt": b"a b", "ids.npz": b"PK"}.items():
        (tmp_path / file).write_bytes(content)
        with pytest.raises(DataError, match=r"has no pairs, on which the run was trained: give a table with the"):
            inputs.open_named([str(tmp_path / file)], config, "predict.input")
    given = np.array([[[CLS, A, SEP, B, SEP, -1, -1], [0, 0, 0, 1, 1, 0, 0]]])
    assert read_all(inputs.open_array(given, config).test)[0] == given.tolist()
    with pytest.raises(DataError, match=r"the inputs hold the type 2 at row 0, column 3: types are 0, 1, and 0 at"):
        inputs.open_array(given + np.array([[0], [1]]), config)
    with pytest.raises(DataError, match=r"whole numbers \[N, 2, 7\], tokens and below them their types,"):
        inputs.open_array(given[:, 0], config)


def test_the_other_cells_of_tables_are_copied(tmp_path, table):
    config = table(text_column="premise", length=5)
    inputs = train_on(open_data(config, 0), config).inputs
    (tmp_path / "new.csv").write_text("id,premise,n\n007,a b,1\n008,,2\n")
    (tmp_path / "new.txt").write_text("a\n\nb\n")
    columns = {
        "premise": ["c", "b"],
        "n": [1.5, float("nan")],
        "tags": [["x"], None],
        "day": [datetime.date(2024, 2, 29), None],
        "image": [b"\x89PNG", None],
        "nested": [{"a": 1}, None],
    }
    pq.write_table(pa.table(columns), tmp_path / "new.parquet")
    named = [str(tmp_path / name) for name in ("new.csv", "new.txt", "new.parquet")]
    asked = inputs.open_named(named, config, "predict.input")
    assert list(asked.others) == [
        {"id": "007", "n": "1"},
        {"id": "008", "n": "2"},
        {},
        {},
        {"n": 1.5, "tags": ["x"], "day": "2024-02-29"},
        {"n": None, "tags": None, "day": None},
    ]
    assert len(asked.names) == len(asked.others)
    assert (
        "not copied to the answers, as they are images, nested or of the same name: image, nested"
        in asked.data.notes[-1]
    )


def test_a_row_without_other_cells_copies_none(tmp_path, table):
    config = table(text_column="premise", length=5)
    inputs = train_on(open_data(config, 0), config).inputs
    (tmp_path / "new.csv").write_text("premise\na\nb\n")
    assert list(inputs.open_named([str(tmp_path / "new.csv")], config, "predict.input").others) == [{}, {}]


def test_other_labelled_data_must_be_pairs_too(table):
    config = table(text_column=PAIRS, length=7)
    data = open_data(config, 0)
    noted = train_on(data, config)
    assert open_labelled(config, noted, {}, 0).test.size == 12
    with pytest.raises(DataError, match=r"its examples are single texts, and the run was trained on pairs: name two"):
        open_labelled(replace(config, text_column="premise"), noted, {}, 0)
    single = train_on(open_data(replace(config, text_column="premise"), 0), config)
    with pytest.raises(DataError, match=r"its examples are pairs, and the run was trained on single texts: name one"):
        open_labelled(config, single, {}, 0)


def test_what_an_export_takes_of_pairs(table):
    inputs = open_data(table(text_column=PAIRS, length=7), 0).inputs
    (sample,) = inputs.samples()
    assert inputs.signature.is_compatible_with(tf.constant(sample))
    served = inputs.serve(tf.constant(sample))
    np.testing.assert_array_equal(served["tokens"], sample[:, 0])
    np.testing.assert_array_equal(served["types"], sample[:, 1])
    assert {0, 1} == {*sample[:, 1].flat}


def test_a_run_without_special_tokens_goes_on_without_them(tmp_path, table):
    """Older ones were trained so, and have no word on it in their inputs.json."""
    config = table(text_column="premise", length=5)
    data = open_data(config, 0)
    kept = TrainedOn(data.inputs, data.targets, data.classes).as_json()
    del kept["inputs"]["vocabulary"]["framed"]
    (tmp_path / "inputs.json").write_text(json.dumps(kept))
    older = open_data(config, 0, folder=tmp_path)
    assert {tuple(row) for row in read_both(older)} == {
        (A, B, C, A, -1),
        (C, -1, -1, -1, -1),
        (B, -1, -1, -1, -1),
        (A, C, -1, -1, -1),
    }
    assert "framed" not in older.inputs.facts()["vocabulary"]
    other = save(make_tokenizer(template(single="[CLS] $A")), tmp_path / "other.json")
    assert all(row[0] == CLS for row in read_both(open_data(replace(config, tokenizer=other), 0, folder=tmp_path)))
    (tmp_path / "inputs.json").write_text("{")
    assert read_both(open_data(config, 0, folder=tmp_path)) == read_both(data), "a damaged file tells nothing"
