"""Classes, labels and numbers, from tables of all formats and from arrays; splits and groups of tables."""

from __future__ import annotations

import json
import math
import os
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from accumtrain.data import pipeline
from accumtrain.data.config import NpzConfig, TableConfig
from accumtrain.data.holdout import add_validation_split, hold_out_groups
from accumtrain.data.inputs.pixels import make_pixels
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.source import Dataset, Source, Wanted
from accumtrain.data.sources.labelled import open_labelled
from accumtrain.data.sources.npz import open_npz
from accumtrain.data.table.arrow_file import check_uncompressed
from accumtrain.data.table.source import open_table
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.targets.labels import LabelTargets
from accumtrain.data.targets.numbers import NumberTargets
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import CLASSES, LABELS, NUMBERS
from tests.data.conftest import PLAIN, join, picture, png

COUNT = 24
UNKNOWN = math.nan
SMOKE = [number % 2 for number in range(COUNT)]
FIRE = [UNKNOWN if number % 5 == 0 else float(number % 3 == 0) for number in range(COUNT)]
AGE = [number / 4 for number in range(COUNT)]
TAGS = [[name for name, step in (("red", 2), ("tall", 3)) if number % step == 0] for number in range(COUNT)]
KINDS = [("ant", "bee", "cat")[number % 3] for number in range(COUNT)]
PATIENTS = [f"p{number // 4}" for number in range(COUNT)]
PARTS = [("train", "train", "Train", "valid", "test", "TEST")[number // 4] for number in range(COUNT)]
COLUMNS: dict[str, list[Any]] = {
    "image": [f"{number:03}" for number in range(COUNT)],
    **{"kind": KINDS, "smoke": SMOKE, "fire": FIRE, "age": AGE, "tags": TAGS, "patient": PATIENTS, "part": PARTS},
}


def as_csv(folder: Path, separator: str = ",") -> Path:
    def cell(value: Any) -> str:
        return "|".join(value) if isinstance(value, list) else "" if value != value else str(value)

    lines = [separator.join(COLUMNS), *(separator.join(map(cell, row)) for row in zip(*COLUMNS.values(), strict=True))]
    file = folder / ("labels.tsv" if separator == "\t" else "labels.csv")
    file.write_text("\n".join(lines))
    return file


def as_tsv(folder: Path) -> Path:
    return as_csv(folder, "\t")


def as_json(folder: Path) -> Path:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "labels.jsonl"


def as_parquet(folder: Path) -> Path:
    pq.write_table(pa.table(COLUMNS), folder / "labels.parquet", row_group_size=7)
    return folder / "labels.parquet"


def as_parquet_with_images(folder: Path) -> Path:
    columns = {**COLUMNS, "image": [png(number) for number in range(COUNT)]}
    pq.write_table(pa.table(columns), folder / "images.parquet", row_group_size=7)
    return folder / "images.parquet"


def as_dataset(folder: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": png(number), "path": None} for number in range(COUNT)]
    names = datasets.ClassLabel(names=["cat", "bee", "ant"])
    features = {
        **{
            "image": datasets.Image(),
            "kind": names,
            "smoke": datasets.Value("bool"),
            "fire": datasets.Value("float32"),
        },
        **{"age": datasets.Value("float64"), "tags": datasets.List(datasets.ClassLabel(names=["tall", "red"]))},
        **{"patient": datasets.Value("string"), "part": datasets.Value("string")},
    }
    columns = {**COLUMNS, "image": images, "smoke": list(map(bool, SMOKE))}
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    made.save_to_disk(str(folder / "saved"))
    return folder / "saved"


FORMATS = [as_csv, as_tsv, as_json, as_parquet, as_parquet_with_images, as_dataset]
TARGETS: dict[str, tuple[TargetReader, Any, list[str], Any]] = {
    "a class": (ClassTargets(), "kind", ["ant", "bee", "cat"], [number % 3 for number in range(COUNT)]),
    "labels in columns": (LabelTargets(), ["smoke", "fire"], ["smoke", "fire"], list(zip(SMOKE, FIRE, strict=True))),
    "lists of labels": (
        LabelTargets(),
        "tags",
        ["red", "tall"],
        [[int(name in tags) for name in ("red", "tall")] for tags in TAGS],
    ),
    "numbers": (NumberTargets(), ["age", "fire"], ["age", "fire"], list(zip(AGE, FIRE, strict=True))),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Numbered pictures 000.png to 023.png in images/."""
    (tmp_path / "images").mkdir()
    for number in range(COUNT):
        (tmp_path / f"images/{number:03}.png").write_bytes(png(number))
    return tmp_path


def config(path: Path, label: Any, **keys: Any) -> TableConfig:
    own = {"image_column": "image", "label_column": label, "val_fraction": 0.0}
    return TableConfig(path=str(path), **{**PLAIN, **own, **keys})


def dataset(source: Source, config: TableConfig | NpzConfig) -> Dataset:
    assert source.train.shape is not None
    inputs = make_pixels(config, source.train.shape, source.train.white)
    return Dataset(**{**vars(source), "inputs": inputs})


def trained_on(names: list[str], form: str) -> TrainedOn:
    return TrainedOn(make_pixels(TableConfig(path=""), (6, 6, 3), 255), form, names)


def opened(config: TableConfig, reader: TargetReader) -> Dataset:
    return dataset(add_validation_split(open_table(config, Wanted(reader=reader)), config), config)


def by_number(data: Dataset) -> dict[int, Any]:
    """The target of each picture in any split by its number."""
    found: dict[int, Any] = {}
    for split, examples in data.splits.items():
        batch = join(make_eval_batches(data, batch=examples.size, split=split))
        numbers = np.rint(batch["inputs"][:, 0, 0, 0] * 255).astype(int).tolist()
        np.testing.assert_array_equal(batch["targets"], examples.known_labels)
        found.update(zip(numbers, batch["targets"], strict=True))
    return found


def numbers_of(data: Dataset) -> dict[str, list[int]]:
    """The numbers of the pictures of each split, sorted."""
    return {
        split: sorted(by_number(Dataset(**{**vars(data), "train": examples, "test": None, "val": None})))
        for split, examples in data.splits.items()
    }


# ---- formats ----


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("write", FORMATS)
def test_all_formats_hold_the_same(folder, write, targets):
    reader, label, names, expected = TARGETS[targets]
    data = opened(config(write(folder), label), reader)
    assert (data.class_names, data.num_classes) == (names, len(names))
    found = by_number(data)
    assert sorted(found) == list(range(COUNT))
    for number, target in found.items():
        np.testing.assert_array_equal(target, np.array(expected[number], target.dtype))
    assert next(iter(found.values())).dtype == (np.int32 if targets == "a class" else np.float32)


@pytest.mark.parametrize("write", [as_csv, as_parquet_with_images])
def test_a_position_is_the_whole_state(folder, write, monkeypatch):
    reader, label, *_ = TARGETS["labels in columns"]
    data = opened(config(write(folder), label), reader)
    whole = join(make_train_batches(data, batch=4, first=0, seed=3).take(12))
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", 0)  # decoded while training
    later = join(make_train_batches(opened(config(write(folder), label), reader), batch=4, first=6, seed=3).take(10))
    for key, values in later.items():
        np.testing.assert_array_equal(values, whole[key][6:46])


def test_images_in_a_table_are_turned_upright_and_may_be_left_out(folder):
    from PIL import Image

    upright = Image.fromarray(picture(3, 4, 6))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    upright.rotate(180).save(folder / "turned.png", exif=exif)
    images = [(folder / "turned.png").read_bytes(), b"no image", png(1, 4, 6), png(2, 4, 6)]
    pq.write_table(pa.table({"image": images, "label": ["a", "a", "b", "b"]}), folder / "few.parquet")
    keys = config(folder / "few.parquet", "label", on_error="skip", test_fraction=0.4)
    found = by_number(opened(keys, ClassTargets()))
    assert found[3] == 0
    with pytest.raises(DataError, match=r"few.parquet, row 2 has no PNG, JPEG, WebP, TIFF, GIF or BMP inside"):
        opened(config(folder / "few.parquet", "label", test_fraction=0.4), ClassTargets())


def test_a_table_names_all_that_open_data_needs(folder):
    """The command line's way: classes, with a validation split."""
    data = open_data(config(as_parquet_with_images(folder), "kind", val_fraction=None), seed=0)
    assert data.sizes == "15 training, 3 validation and 6 test"


# ---- splits ----


@pytest.mark.parametrize("write", [as_csv, as_dataset])
def test_a_column_says_the_splits(folder, write):
    data = opened(config(write(folder), "age", split_column="part"), NumberTargets())
    assert numbers_of(data) == {"train": [*range(12)], "val": [*range(12, 16)], "test": [*range(16, 24)]}


@pytest.mark.slow
def test_tables_are_splits(folder):
    for name, numbers in (("train", range(15)), ("val", range(15, 20)), ("test", range(20, 24))):
        (folder / f"{name}.csv").write_text(
            "image,kind\n" + "\n".join(f"{number:03},{KINDS[number]}" for number in numbers)
        )
    paths = {f"{name}_path": str(folder / f"{name}.csv") for name in ("val", "test")}
    data = opened(config(folder / "train.csv", "kind", **paths), ClassTargets())
    assert numbers_of(data) == {"train": [*range(15)], "val": [*range(15, 20)], "test": [*range(20, 24)]}
    data = opened(config(folder / "train.csv", "kind", val_path=paths["val_path"]), ClassTargets())
    assert numbers_of(data) == {"train": [*range(15)], "val": [*range(15, 20)]}
    assert f"4 images are not in the table, and are left out: {folder}/images/020.png" in " ".join(data.notes)


def test_tables_in_other_folders_name_files_from_there(folder):
    for name, numbers in (("one", range(12)), ("two", range(12, 24))):
        (folder / name).mkdir()
        for number in numbers:
            (folder / "images" / f"{number:03}.png").rename(folder / name / f"{number % 12:03}.png")
        rows = "\n".join(f"{number % 12:03},{AGE[number]}" for number in numbers)
        (folder / name / "labels.csv").write_text("image,age\n" + rows)
    keys = config(folder / "one/labels.csv", "age", test_path=str(folder / "two/labels.csv"))
    data = opened(keys, NumberTargets())
    assert numbers_of(data) == {"train": [*range(12)], "test": [*range(12, 24)]}
    assert {number: float(target[0]) for number, target in by_number(data).items()} == dict(enumerate(AGE))


def test_tables_of_other_targets_are_refused(folder):
    (folder / "train.csv").write_text("image,age\n000,1\n001,2\n")
    (folder / "test.csv").write_text("image,years\n002,1\n003,2\n")
    keys = {"image_column": None, "test_path": str(folder / "test.csv")}
    assert numbers_of(opened(config(folder / "train.csv", None, **keys), ClassTargets()))["test"] == [2, 3]
    with pytest.raises(DataError, match=r"test.csv has the targets years, .*train.csv has age: name the columns alike"):
        open_table(config(folder / "train.csv", None, **keys), Wanted(reader=NumberTargets()))


def test_a_saved_dataset_has_its_own_splits(folder):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    whole = datasets.load_from_disk(str(as_dataset(folder)))
    parts = {
        "train": whole.select(range(15)),
        "validation": whole.select(range(15, 20)),
        "test": whole.select(range(20, 24)),
    }
    datasets.DatasetDict(parts).save_to_disk(str(folder / "parts"))
    data = opened(config(folder / "parts", "age"), NumberTargets())
    assert numbers_of(data) == {"train": [*range(15)], "val": [*range(15, 20)], "test": [*range(20, 24)]}
    with pytest.raises(
        DataError, match=r"has the splits train, validation, test: these must be train, and val or test"
    ):
        opened(config(folder / "parts", "age", split_column="part"), NumberTargets())


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_packed_parts_of_a_saved_dataset_are_refused(folder, compression, kind):
    """A few bytes of them can be gigabytes."""
    file = folder / "data.arrow"
    table = pa.table({"label": pa.array(["a"] * 1000, kind)})
    for packed in (None, compression):
        options = pa.ipc.IpcWriteOptions(compression=packed)
        with pa.OSFile(str(file), "wb") as stream, pa.ipc.new_stream(stream, table.schema, options=options) as writer:
            writer.write_table(table)
        with pytest.raises(ValueError, match="its parts are compressed") if packed else nullcontext():
            check_uncompressed(file)


def test_without_the_library_datasets_the_extra_is_named(folder, monkeypatch):
    (folder / "saved").mkdir()
    (folder / "saved/state.json").write_text("{}")
    monkeypatch.setattr("accumtrain.data.table.reader.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'accumtrain\[datasets\]'"):
        opened(config(folder / "saved", "age"), NumberTargets())


def test_a_folder_that_is_no_saved_dataset_any_more(folder):
    pytest.importorskip("datasets")
    (folder / "saved").mkdir()
    (folder / "saved/state.json").write_text("{}")
    with pytest.raises(DataError, match=r"data.path=.*saved can't be read .*: save it again with save_to_disk"):
        opened(config(folder / "saved", "age"), NumberTargets())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"label_column": []}, r"data.label_column=\[\]: must hold the names of different columns"),
        ({"label_column": ["a", "a"]}, r"data.label_column=\[a,a\]: must hold the names of different columns"),
        ({"split_column": "part", "test_path": "t.csv"}, "data.split_column=part and data.test_path=t.csv: both say"),
    ],
)
def test_keys_that_contradict_each_other(keys, message):
    with pytest.raises(ConfigError, match=message):
        TableConfig(path="labels.csv", **keys).check()


def test_columns_of_several_labels_are_no_classes(folder):
    with pytest.raises(DataError, match=r"labels.csv, row 2: the columns smoke, fire are classes, and hold 1 for none"):
        opened(config(as_csv(folder), ["smoke", "fire"]), ClassTargets())


# ---- what is held out ----


@pytest.mark.parametrize("targets", ["labels in columns", "numbers"])
def test_without_classes_the_smallest_checksums_are_held_out(folder, targets):
    reader, label, *_ = TARGETS[targets]
    data = opened(config(as_csv(folder), label), reader)
    smallest = sorted(range(COUNT), key=lambda number: zlib.crc32(f"{number:03}".encode()))[:5]  # round(0.2 * 24)
    assert numbers_of(data)["test"] == sorted(smallest)


@pytest.mark.slow
@pytest.mark.parametrize("targets", TARGETS)
def test_groups_are_never_torn_apart(folder, targets):
    reader, label, *_ = TARGETS[targets]
    data = opened(config(as_csv(folder), label, group="patient", val_fraction=0.3), reader)
    numbers = numbers_of(data)
    groups = {split: {PATIENTS[number] for number in own} for split, own in numbers.items()}
    assert sum(map(len, groups.values())) == 6, "no group in two splits"
    smallest = min(sorted(set(PATIENTS)), key=lambda name: zlib.crc32(name.encode()))
    assert groups["test"] == {smallest}  # 4 of 24: another group would make it more than 0.2


def test_a_group_with_the_last_of_a_class_stays():
    groups, labels = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 0, 1, 2, 2])
    held = hold_out_groups(groups, np.array([2, 1, 0]), 0.4, labels)
    assert held.tolist() == [False, False, True, True, False, False]
    assert not hold_out_groups(groups, np.array([2, 1, 0]), 0.4, np.array([0, 0, 1, 1, 2, 2])).any()


def test_of_groups_that_are_all_too_large_the_smallest_is_held_out():
    groups = np.array([0] * 5 + [1] * 3 + [2] * 4)
    held = hold_out_groups(groups, np.array([0, 1, 2]), 0.1, np.zeros(12, int))
    assert held.tolist() == [False] * 5 + [True] * 3 + [False] * 4


def test_groups_in_whole_splits_are_fine_and_unknown_labels_are_told(folder):
    keys = config(as_csv(folder), ["smoke", "fire"], split_column="part", group="patient")
    assert opened(keys, LabelTargets()).sizes == "12 training, 4 validation and 8 test"
    (folder / "late.csv").write_text("image,x,y\n000,1,\n001,,\n002,0,\n003,1,1\n")
    data = opened(config(folder / "late.csv", ["x", "y"], test_fraction=0.3), LabelTargets())
    assert "1 row without a label is left out: 001" in data.notes


# ---- evaluation on other data ----


def test_other_data_is_read_in_the_order_of_the_run(folder):
    images, numbers = (trained_on(["fire", "smoke"], form) for form in (LABELS, NUMBERS))
    for label in (["smoke", "fire"], None):
        data = open_labelled(config(as_csv(folder), label), images, {}, 0)
        assert data.class_names == ["fire", "smoke"]
        for number, target in by_number(Dataset(**{**vars(data), "train": data.test})).items():
            np.testing.assert_array_equal(target, np.array([FIRE[number], SMOKE[number]], np.float32))
    with pytest.raises(
        DataError, match=r"the targets are smoke, age, and fire, smoke are needed: .*label_column=\[fire"
    ):
        open_labelled(config(as_csv(folder), ["smoke", "age"]), numbers, {}, 0)
    np.savez(folder / "few.npz", images=np.zeros([4, 6, 6, 3], np.uint8), labels=np.eye(4)[:, :1], names=["fire"])
    with pytest.raises(DataError, match="a column for each of these, and call it so in names"):
        open_labelled(NpzConfig(path=str(folder / "few.npz")), images, {}, 0)
    data = open_labelled(config(as_json(folder), "tags"), trained_on(["tall", "red", "new"], LABELS), {}, 0)
    np.testing.assert_array_equal(data.test.known_labels[:3], [[1, 1, 0], [0, 0, 0], [0, 1, 0]])
    with pytest.raises(DataError, match="row 1: red is none of the labels: choose from tall"):
        open_labelled(config(as_json(folder), "tags"), trained_on(["tall"], LABELS), {}, 0)


def test_a_column_of_numbers_is_no_list_of_labels():
    """But several in a cell may be the codes of labels."""
    reader = LabelTargets()
    with pytest.raises(DataError, match=r"column age holds a number in each row, such as 3\.5: choose task=regress"):
        reader.read_columns({"age": pa.chunked_array([["40", "3.5", None]])}, str)
    assert reader.read_columns({"codes": pa.chunked_array([["7;12", "3"]])}, str).names == ["12", "3", "7"]


def test_all_rows_are_one_split(folder):
    of_run = trained_on(["ant", "bee", "cat"], CLASSES)
    source = open_table(config(as_csv(folder), "kind", split_column="part"), Wanted(of_run=of_run))
    assert (source.train.size, source.test, source.class_names) == (COUNT, None, ["ant", "bee", "cat"])


# ---- arrays ----


def arrays(folder: Path, labels: Any, **more: Any) -> NpzConfig:
    images = np.stack([picture(number) for number in range(len(labels))])
    np.savez(folder / "mine.npz", images=images, labels=np.array(labels), **more)
    return NpzConfig(path=str(folder / "mine.npz"), **{**PLAIN, "val_fraction": 0.0})


@pytest.mark.parametrize(
    ("reader", "labels", "more", "names"),
    [
        (NumberTargets(), AGE, {}, ["0"]),
        (NumberTargets(), list(zip(AGE, FIRE, strict=True)), {"names": ["age", "fire"]}, ["age", "fire"]),
        (LabelTargets(), list(zip(SMOKE, FIRE, strict=True)), {}, ["0", "1"]),
        (LabelTargets(), [[True, False]] * COUNT, {"names": ["a", "b"]}, ["a", "b"]),
    ],
)
def test_arrays_hold_labels_and_numbers(tmp_path, reader, labels, more, names):
    keys = arrays(tmp_path, labels, **more)
    source = open_npz(keys, Wanted(reader=reader))
    assert (source.class_names, source.num_classes) == (names, len(names))
    found = by_number(dataset(source, keys))
    assert sorted(found) == list(range(COUNT))
    for number, target in found.items():
        np.testing.assert_array_equal(target, np.atleast_1d(np.array(labels[number], np.float32)))
    assert source.test is not None
    assert source.test.size == 5


def test_an_array_s_rows_without_a_target_are_left_out(tmp_path):
    source = open_npz(arrays(tmp_path, [UNKNOWN, *AGE[1:]]), Wanted(reader=NumberTargets()))
    assert "left out, without a target: 1 training example" in source.notes
    assert source.test is not None
    assert source.train.size + source.test.size == COUNT - 1


@pytest.mark.parametrize(
    ("reader", "labels", "more", "message"),
    [
        (LabelTargets(), [[0, 1], [1, 2]], {}, "labels holds 2 at 1,1: write 1 for an image that has the label"),
        (NumberTargets(), [1, math.inf], {}, "labels holds inf at 1,0, which float32 can't hold"),
        (NumberTargets(), [1, 1e39], {}, r"labels holds 1e\+39 at 1,0, which float32 can't hold"),
        (NumberTargets(), ["1", "2"], {}, "labels is of type <U1: save numbers"),
        (NumberTargets(), [[1, 2]] * 2, {"names": ["a"]}, "labels has 2 columns, and there are 1 names"),
        (NumberTargets(), [[1, 2]] * 2, {"names": ["a", "a"]}, "names holds a, a: give each column a name of its own"),
        (
            NumberTargets(),
            [[1, 2]] * 2,
            {"test_images": np.zeros([2, 6, 6, 3], np.uint8), "test_labels": [1, 2]},
            "labels and test_labels have 2 and 1 columns",
        ),
        (NumberTargets(), [UNKNOWN] * 3, {}, "no example to train on has a target"),
    ],
)
def test_arrays_that_are_refused(tmp_path, reader, labels, more, message):
    with pytest.raises(DataError, match=message):
        open_npz(arrays(tmp_path, labels, **more), Wanted(reader=reader))


def test_names_are_those_of_labels_and_numbers_alone(tmp_path):
    """An array `names` beside classes has no meaning, and is not read."""
    classes = open_npz(arrays(tmp_path, SMOKE, names=["a", "b"]), Wanted())
    plain = open_npz(arrays(tmp_path, SMOKE), Wanted())
    assert (classes.class_names, classes.fingerprint) == ([], plain.fingerprint)


def rewrite(file: Path, change: Any) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def put_fifo(file: Path) -> None:
    file.unlink(missing_ok=True)
    os.mkfifo(file)


DEEP = "[" * 100_000 + "]" * 100_000
STRANGE = {
    "state is a list": lambda saved: (saved / "state.json").write_text("[]"),
    "state is deep": lambda saved: (saved / "state.json").write_text(DEEP),
    "info is deep": lambda saved: (saved / "dataset_info.json").write_text(DEEP),
    "info is a number": lambda saved: (saved / "dataset_info.json").write_text("5"),
    "info is a FIFO": lambda saved: put_fifo(saved / "dataset_info.json"),
    "state is a FIFO": lambda saved: put_fifo(saved / "state.json"),
    "arrays are a FIFO": lambda saved: put_fifo(next(saved.glob("*.arrow"))),
    "arrays are a device": lambda saved: rewrite(
        saved / "state.json", lambda state: state.update(_data_files=[{"filename": "/dev/zero"}])
    ),
    "a file is outside": lambda saved: rewrite(
        saved / "state.json", lambda state: state.update(_data_files=[{"filename": "../train.csv"}])
    ),
    "files are numbers": lambda saved: rewrite(saved / "state.json", lambda state: state.update(_data_files=[1])),
    "a type is unknown": lambda saved: rewrite(
        saved / "dataset_info.json", lambda info: info["features"]["kind"].update(_type="Nothing")
    ),
    "a class has no name": lambda saved: rewrite(
        saved / "dataset_info.json", lambda info: info["features"]["kind"].update(names=["cat", "bee"])
    ),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=list(STRANGE))
def test_saved_datasets_of_strangers_are_refused(folder, change):
    saved = as_dataset(folder)
    change(saved)
    with pytest.raises(DataError, match=r"data.path=.*saved.*: save it again with save_to_disk"):
        opened(config(saved, "kind"), ClassTargets())


def test_splits_outside_the_folder_of_a_saved_dataset_are_refused(folder):
    as_dataset(folder)
    (folder / "parts").mkdir()
    (folder / "parts/dataset_dict.json").write_text('{"splits": ["../saved"]}')
    with pytest.raises(DataError, match=r"dataset_dict.json names '../saved', which is no name in its folder: save it"):
        opened(config(folder / "parts", "kind"), ClassTargets())


def test_a_saved_dataset_without_rows(folder):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.load_from_disk(str(as_dataset(folder))).select([]).save_to_disk(str(folder / "none"))
    with pytest.raises(DataError, match=r"none has no row: give the table"):
        opened(config(folder / "none", "kind"), ClassTargets())
