"""Columns of texts and of their labels that no key names, where the cells leave no choice."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from accumtrain.data.config import TableConfig
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import open_data
from accumtrain.data.sources.labelled import open_labelled
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import CLASSES, LABELS, NUMBERS, TOKENS

COUNT = 24
COLUMNS = {
    "id": [f"{number:03}" for number in range(COUNT)],
    "text": [f"this is the long text of number {number}" for number in range(COUNT)],
    "kind": ["abc"[number % 3] for number in range(COUNT)],
}
MEAN = round(sum(map(len, COLUMNS["text"])) / COUNT)
TOLD = f"text column: text (mean {MEAN} characters)"


def write_csv(folder, columns):
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (folder / "t.csv").write_text("\n".join([",".join(columns), *lines]))
    return folder / "t.csv"


def write_json(folder, columns):
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "t.jsonl"


def write_parquet(folder, columns):
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def opened(path, targets=CLASSES, **keys):
    return open_data(TableConfig(path=str(path), **{"val_fraction": 0.0, "length": 48, **keys}), 0, targets)


@pytest.mark.parametrize("write", [write_csv, write_json, write_parquet])
def test_one_column_of_long_texts_and_one_of_few_values_are_taken(tmp_path, write):
    path = write(tmp_path, COLUMNS)
    data = opened(path)
    assert f"{path}: {TOLD}; labels: kind (3 values)" in data.notes
    assert data.class_names == ["a", "b", "c"]
    assert (data.inputs.kind, data.inputs.column) == ("tokens", "text")
    tokens, _ = data.train.read(tf.range(1, dtype=tf.int64))
    assert data.inputs.vocabulary.decode(tokens[0].numpy()).startswith("this is the long text of number")
    named = opened(path, text_column="text", label_column="kind")
    assert named.fingerprint == data.fingerprint
    assert "column" not in named.inputs.facts()


@pytest.mark.parametrize(
    ("targets", "others", "keys", "told"),
    [
        (CLASSES, {"kind": COLUMNS["kind"]}, {}, "; labels: kind (3 values)"),
        (CLASSES, {"note": ["x", "y"] * 12}, {"label_column": "kind"}, ""),
        (CLASSES, {"part": ["train", "test"] * 12}, {"split_column": "part"}, "; labels: kind (3 values)"),
        (TOKENS, {}, {}, ""),
        (LABELS, {"red": [0, 1] * 12, "kind": [1, 0, 0] * 8, "id": [0, 1, 1] * 8}, {}, "; labels: id, kind, red"),
        (LABELS, {"kind": ["a;b", "b", "a"] * 8}, {"label_column": "kind"}, ""),
        (NUMBERS, {"id": [1.5, 2.5, 4.0] * 8, "kind": [3, 1, 2] * 8}, {}, "; labels: id, kind"),
    ],
)
def test_labels_are_those_of_the_task(tmp_path, targets, others, keys, told):
    path = write_csv(tmp_path, {**COLUMNS, **others})
    assert f"{path}: {TOLD}{told}" in opened(path, targets, **keys).notes


ASKED = {
    "two columns of texts": {"other": [f"and here is one more text {number}" for number in range(COUNT)]},
    "two columns of few values": {"mood": ["good", "bad"] * 12},
    "no column of few values": {"kind": [f"kind {number}" for number in range(COUNT)]},
    "short texts": {"text": [f"text {number}" for number in range(COUNT)]},
    "few texts": {"text": ["this is one of only two texts", "and this is the other text"] * 12},
}


@pytest.mark.parametrize("how", ASKED)
def test_a_choice_is_asked_for(tmp_path, how):
    path = write_csv(tmp_path, {**COLUMNS, **ASKED[how]})
    with pytest.raises(
        DataError, match=r"t\.csv has the columns id, .*: say which of them hold an example, data\.image"
    ):
        opened(path)


def test_tokens_of_no_column_of_long_texts_are_asked_for(tmp_path):
    path = write_csv(tmp_path, {**COLUMNS, "text": COLUMNS["id"]})
    with pytest.raises(ConfigError, match=r"data\.text_column=null: the tokens of texts are learned; name one column"):
        opened(path, TOKENS)


def test_names_of_images_are_no_texts(tmp_path):
    names = [f"a photo of the year number {number}.png" for number in range(COUNT)]
    image = tf.io.encode_png(tf.zeros([4, 4, 3], tf.uint8)).numpy()
    for name in names:
        (tmp_path / name).write_bytes(image)
    data = opened(write_csv(tmp_path, {"file": names, "kind": COLUMNS["kind"]}), length=None)
    assert (data.inputs.kind, data.class_names) == ("pixels", ["a", "b", "c"])


def test_a_run_finds_its_texts_by_the_name_of_the_column(tmp_path):
    config = TableConfig(path=str(write_csv(tmp_path, COLUMNS)), val_fraction=0.0, length=48)
    data = open_data(config, 0)
    kept = json.loads(json.dumps(TrainedOn(data.inputs, data.targets, data.classes).as_json()))
    noted = TrainedOn.from_json(kept, config)
    assert noted.inputs.column == "text"
    (tmp_path / "new.csv").write_text("n,text\n1,short\n")
    asked = noted.inputs.open_named([str(tmp_path / "new.csv")], config, "predict.input")
    assert noted.inputs.beginnings(asked.data.test, [0]) == ["short"]
    assert list(asked.others) == [{"n": "1"}]
    (tmp_path / "few.csv").write_text("kind,text,mood\na,one,x\nb,two,y\n")
    other = replace(config, path=str(tmp_path / "few.csv"), label_column="kind")
    assert open_labelled(other, noted, {}, 0).test.size == 2
    (tmp_path / "more.csv").write_text("id,text,mood\n0,one,a\n1,two,a\n2,three,b\n3,four,b\n")
    assert open_labelled(replace(config, path=str(tmp_path / "more.csv")), noted, {}, 0).test.size == 4


def test_labels_beside_named_texts(tmp_path):
    path = write_csv(tmp_path, {**COLUMNS, "text": COLUMNS["id"]})
    data = opened(path, text_column="text")
    assert f"{path}: labels: kind (3 values)" in data.notes
    with pytest.raises(DataError, match=r"say which of them hold the labels, data\.label_column=<name>"):
        opened(write_csv(tmp_path, {**COLUMNS, "mood": ["x", "y"] * 12}), text_column="text")


def test_the_only_other_column_may_have_another_name_in_another_table(tmp_path):
    (tmp_path / "more").mkdir()
    own = {"text": COLUMNS["text"], "kind": COLUMNS["kind"]}
    other = write_csv(tmp_path / "more", {"text": COLUMNS["text"], "sort": COLUMNS["kind"]})
    data = opened(write_csv(tmp_path, own), test_path=str(other))
    assert data.test.size == COUNT
    assert any(note.endswith(f"{TOLD}; labels: kind (3 values)") for note in data.notes)
