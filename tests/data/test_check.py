"""job=check: bad examples are named with their reasons, and images in both splits or two classes."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from accumtrain import progress
from accumtrain.config.registries import register_data
from accumtrain.data.checking import check
from accumtrain.data.checking.check import CheckedClasses, scan_split
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.source import ArraySplit, Source
from accumtrain.data.sources.config import SOURCES
from accumtrain.errors import ConfigError, DataError
from tests.data.conftest import png
from tests.data.word_tokenizer import CLS_PAIR, make_tokenizer, save, template

ARGUMENTS = ("job=check", "run.name=one", "data=folder", "data.path=photos", "data.val_fraction=0")


@pytest.fixture
def photos(tmp_path):
    """5 training and 2 test images of each of two classes."""
    for split, first, count in (("train", 0, 5), ("test", 50, 2)):
        for label, name in enumerate(("ant", "bee")):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.png").write_bytes(png(first + label * 10 + number))
    return tmp_path / "photos"


def result(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "runs/trials/check-one/check.json").read_text())


def test_a_clean_folder(photos, command, tmp_path):
    answer = command(*ARGUMENTS)
    assert answer.code == 0, answer.err
    assert result(tmp_path)["status"] == "completed"
    assert result(tmp_path)["train"] == {
        "examples": 10,
        "classes": {"ant": 5, "bee": 5},
        "height": {"min": 6, "median": 6, "max": 6},
        "width": {"min": 6, "median": 6, "max": 6},
        "bad": 0,
    }
    assert "ant        5     2" in answer.out
    assert "0 test images are also in the training split" in answer.out
    assert answer.out.endswith("\nThe data can be trained on.\n")


def test_everything_bad_is_named(photos, command, tmp_path):
    (photos / "train/ant/0.png").write_bytes(b"")
    (photos / "train/ant/1.png").write_bytes(png(1)[:60])
    (photos / "train/bee/4.png").write_bytes(png(14, 9, 9))
    (photos / "test/bee/1.png").write_bytes(b"a text, and no image at all")
    answer = command(*ARGUMENTS)
    assert answer.code == DataError.exit_code
    bad = "4 of 14 examples are bad, runs/trials/check-one/check.json names them: replace them"
    without = "on without those that can't be read\n"
    assert f"{bad}, or train with data.on_error=skip to go {without}" in answer.err
    assert f"{bad}, or a training goes {without}" in command(*ARGUMENTS, "data.on_error=skip").err
    found = result(tmp_path)
    assert found["status"] == "bad"
    assert found["train"]["classes"] == {"ant": 3, "bee": 4}
    assert found["bad"]["count"] == 4
    others = "other images are 6 x 6 pixels"
    assert found["bad"]["examples"] == [
        {"split": "train", "name": "photos/train/ant/0.png", "reason": "is empty"},
        {"split": "train", "name": "photos/train/ant/1.png", "reason": "can't be decoded as an image (60 bytes)"},
        {"split": "train", "name": "photos/train/bee/4.png", "reason": f"is 9 x 9 pixels, {others}"},
        {"split": "test", "name": "photos/test/bee/1.png", "reason": "has no PNG, JPEG, WebP, TIFF, GIF or BMP inside"},
    ]
    for example in found["bad"]["examples"]:
        assert f"{example['name']} {example['reason']}" in answer.out


def test_images_of_many_sizes(photos, command, tmp_path):
    for number, side in enumerate((3, 7, 8, 9)):
        (photos / f"train/bee/{number}.png").write_bytes(png(number + 10, side, side))
    assert command(*ARGUMENTS, "data.image_size=6").code == 0
    assert result(tmp_path)["train"]["height"] == {"min": 3, "median": 6, "max": 9}


def test_the_same_image_in_both_splits(photos, command, tmp_path):
    (photos / "test/ant/1.png").write_bytes((photos / "train/bee/3.png").read_bytes())
    answer = command(*ARGUMENTS)
    assert answer.code == 0
    assert result(tmp_path)["duplicates"] == {
        "count": 1,
        "examples": [{"train": "photos/train/bee/3.png", "test": "photos/test/ant/1.png"}],
    }
    assert "photos/test/ant/1.png is photos/train/bee/3.png" in answer.out


def test_one_image_in_two_classes(photos, command, tmp_path):
    (photos / "train/ant/copy.png").write_bytes((photos / "train/bee/3.png").read_bytes())
    (photos / "test/bee/copy.png").write_bytes((photos / "train/ant/1.png").read_bytes())
    answer = command(*ARGUMENTS)
    assert answer.code == 0
    assert result(tmp_path)["two_classes"] == {
        "count": 2,
        "examples": [
            {"ant": "photos/train/ant/1.png", "bee": "photos/test/bee/copy.png"},
            {"ant": "photos/train/ant/copy.png", "bee": "photos/train/bee/3.png"},
        ],
    }
    assert "warning: 2 images in two classes, byte for byte" in answer.err
    assert "photos/train/ant/copy.png is photos/train/bee/3.png" in answer.out
    assert "warning: 1 test image is also in the training split" in answer.err


def test_the_last_line_says_what_must_be_looked_at(photos, command):
    for number in range(2):
        (photos / f"test/ant/{number}.png").write_bytes((photos / "train/bee/3.png").read_bytes())
    assert command(*ARGUMENTS).out.endswith(
        "\nLook at this before you train: 2 test images also in the training split, 1 image in two classes.\n"
    )
    for number in range(2):
        (photos / f"test/ant/{number}.png").write_bytes(b"")
    answer = command(*ARGUMENTS)
    assert answer.code == DataError.exit_code
    assert "\nLook at this before you train: 2 bad examples, class ant without test images.\n" in answer.out


def test_a_jpeg_that_decodes_though_it_is_damaged(photos, command, tmp_path):
    for name, damaged in (("good", False), ("damaged", True)):
        pixels = np.random.default_rng(3).integers(60, 120, [48, 48, 3], np.uint8)
        content = bytearray(tf.io.encode_jpeg(pixels, quality=95).numpy())
        if damaged:
            content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
        (photos / f"train/ant/{name}.jpg").write_bytes(content)
    answer = command(*ARGUMENTS, "data.image_size=6")
    assert answer.code == DataError.exit_code
    (bad,) = result(tmp_path)["bad"]["examples"]
    assert bad["name"] == "photos/train/ant/damaged.jpg"
    assert bad["reason"].startswith("is damaged, though it can be decoded: Corrupt JPEG data: ")
    assert "1 of 16 examples are bad" in answer.err
    assert result(tmp_path)["train"]["classes"]["ant"] == 6


def test_the_same_array_in_both_splits(command, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, [6, 4, 4], np.uint8)
    labels = np.arange(6) % 2
    np.savez(tmp_path / "mine.npz", images=images, labels=labels, test_images=images[4:], test_labels=labels[4:])
    assert command("job=check", "run.name=one", "data=npz", "data.path=mine.npz").code == 0
    assert result(tmp_path)["duplicates"]["examples"] == [
        {"train": "train example 4", "test": "test example 0"},
        {"train": "train example 5", "test": "test example 1"},
    ]


def test_arrays_are_looked_at_one_by_one():
    images = np.arange(70 * 4, dtype=np.float32).reshape(70, 2, 2, 1) / 280
    labels = np.arange(70) % 2
    images[40, 1, 0] = np.nan
    images[50] = images[3]
    labels[60] = 2
    reported: list[int] = []
    statistics = scan_split(ArraySplit(images, labels), "train", CheckedClasses("01"), reported.append)
    assert [(bad.name, bad.reason) for bad in statistics.bad] == [
        ("train example 40", "has pixels that are not finite"),
        ("train example 60", "has label 2, classes are 0..1"),
    ]
    assert statistics.targets == {0: 33, 1: 35}
    assert statistics.sizes == Counter({(2, 2): 68})
    assert [found for found in statistics.contents.values() if len(found) > 1] == [
        [("train example 3", 1), ("train example 50", 0)]
    ]
    assert sum(reported) == 70


def test_the_tables_are_short(photos, command, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_SHOWN", 1)
    for number in range(3):
        (photos / f"train/ant/{number}.png").write_bytes(b"")
    answer = command(*ARGUMENTS)
    assert answer.out.count("is empty") == 1
    assert "... and 2 more" in answer.out
    assert len(result(tmp_path)["bad"]["examples"]) == 3


def test_a_terminal_shows_how_far_it_is(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(progress, "stdout", lambda: Console(file=text, force_terminal=True, width=80))
    with progress.counting("reading train", 2000) as report:
        report(900)
        report(1100)
    assert "reading train" in text.getvalue()
    assert "2,000/2,000" in text.getvalue()


# ---- labels and numbers ----

LABELS = np.array([[1, 0, 1], [0, 0, np.nan], [1, 0, 1], [1, np.nan, 1]], np.float32)
NUMBERS = np.array([[0.1, 5], [np.nan, 5], [-3, np.nan], [7.5, 5]], np.float32)


@pytest.fixture
def checked(compose, monkeypatch, capsys):
    """Run job=check on arrays with targets of a form. Return check.json and the output."""

    def check_arrays(form: str, targets: np.ndarray, test: np.ndarray, images: np.ndarray | None = None):
        def image(start, count):
            return np.random.default_rng(start).integers(0, 256, [count, 4, 4, 1], np.uint8)

        def open_arrays(config, seed):
            train = ArraySplit(image(0, len(targets)) if images is None else images, targets)
            return Source(train, ArraySplit(image(1, len(test)), test), len(names), class_names=names)

        names = ["even", "small", "round"][: targets.shape[1]]
        monkeypatch.setattr(SOURCES, "entries", dict(SOURCES.entries))
        register_data("arrays", open_arrays, targets=form)
        task = {"labels": "multilabel", "numbers": "regress"}[form]
        config = compose("job=check", f"task={task}", "data=arrays", "data.val_fraction=0")
        try:
            return check.check_data(config), capsys.readouterr()
        except DataError as bad:
            return bad.result, capsys.readouterr()

    return check_arrays


def test_labels_are_counted(checked):
    found, told = checked("labels", LABELS, LABELS[:2])
    assert (found["status"], found["different_labels"]) == ("completed", {"count": 0, "examples": []})
    assert found["train"]["examples"] == 4
    assert found["train"]["labels"] == {
        "even": {"with": 3, "without": 1, "unknown": 0},
        "small": {"with": 0, "without": 3, "unknown": 1},
        "round": {"with": 3, "without": 0, "unknown": 1},
    }
    assert "images with a label / without it / unknown" in told.out
    assert "even   3 / 1 / 0  1 / 1 / 0" in told.out
    assert told.out.endswith(
        "\nLook at this before you train: label small without training images, label round on all training images, "
        "label small without test images, label round on all test images.\n"
    )


def test_numbers_are_measured(checked):
    found, told = checked("numbers", NUMBERS, np.array([[1, 2], [2, 3]], np.float32))
    assert found["status"] == "completed"
    assert found["train"]["numbers"] == {
        "even": {"min": -3.0, "mean": pytest.approx((0.1 - 3 + 7.5) / 3), "max": 7.5, "unknown": 1},
        "small": {"min": 5.0, "mean": 5.0, "max": 5.0, "unknown": 1},
    }
    assert ["even", "train", "-3", "1.53333", "7.5", "1"] in [line.split() for line in told.out.splitlines()]
    assert told.out.endswith("\nLook at this before you train: number small the same for all training images.\n")


def test_a_number_that_is_never_known(checked):
    found, told = checked("numbers", NUMBERS, np.full([2, 2], np.nan, np.float32))
    assert found["test"]["numbers"]["even"] == {"min": None, "mean": None, "max": None, "unknown": 2}
    assert ["even", "test", "-", "-", "-", "2"] in [line.split() for line in told.out.splitlines()]
    assert "2 numbers unknown for all test images" in told.out


@pytest.mark.parametrize(
    ("form", "targets", "same", "words", "told"),
    [
        ("labels", LABELS, [0, 1], {"even, round": 0, "round?": 1}, "1 image with different labels"),
        ("numbers", NUMBERS, [2, 3], {"even -3, small -": 2, "even 7.5, small 5": 3}, "1 image with different numbers"),
    ],
)
def test_one_image_with_different_targets(checked, form, targets, same, words, told):
    images = np.random.default_rng(3).integers(0, 256, [4, 4, 4, 1], np.uint8)
    images[same[1]] = images[same[0]]
    found, said = checked(form, targets, targets[:2], images)
    assert found[f"different_{form}"] == {
        "count": 1,
        "examples": [{target: f"train example {place}" for target, place in words.items()}],
    }
    assert f"warning: 1 image with different {form}, byte for byte" in said.err
    assert told in said.out


@pytest.mark.parametrize(("form", "targets", "same"), [("labels", LABELS, [0, 3]), ("numbers", NUMBERS, [1, 3])])
def test_an_unknown_target_is_no_other(checked, form, targets, same):
    images = np.random.default_rng(3).integers(0, 256, [4, 4, 4, 1], np.uint8)
    images[same[1]] = images[same[0]]
    found, _ = checked(form, targets, targets[:2], images)
    assert found[f"different_{form}"]["count"] == 0


@pytest.mark.parametrize(
    ("form", "value", "reason"),
    [
        ("labels", 0.5, "has small=0.5, labels are 0, 1 or NaN where they are unknown"),
        ("numbers", -np.inf, "has small=-inf, numbers are finite, or NaN where they are unknown"),
    ],
)
def test_targets_that_can_not_be(checked, form, value, reason):
    targets = np.array([[1, 0], [0, value], [0, 1]], np.float32)
    found, _ = checked(form, targets, targets[:1])
    assert found["bad"] == {
        "count": 1,
        "examples": [{"split": "train", "name": "train example 1", "reason": reason}],
    }
    assert found["train"]["examples"] == 2


def test_inputs_that_are_no_images_are_refused(compose, monkeypatch):
    def open_rows(config, seed):
        rows = ArraySplit(np.zeros([4, 3], np.float32), np.zeros([4, 1], np.float32))
        return Source(rows, rows, 1, inputs=Arrays((3,)))

    monkeypatch.setattr(SOURCES, "entries", dict(SOURCES.entries))
    register_data("rows", open_rows, targets="numbers")
    with pytest.raises(
        ConfigError, match=r"check: reads images, texts and tables of numbers .*data=rows has other inputs"
    ):
        check.check_data(compose("job=check", "task=regress", "data=rows", "data.val_fraction=0"))


@pytest.fixture
def numbers(tmp_path):
    """Two numbers and a class in each of 10 training and 4 test rows, in two files."""
    rows = [f"{number},{number / 4},{'ab'[number % 2]}" for number in range(14)]
    (tmp_path / "train.csv").write_text("\n".join(["x,y,kind", *rows[:10]]))
    (tmp_path / "test.csv").write_text("\n".join(["x,y,kind", *rows[10:]]))
    return tmp_path


TABLE = ("job=check", "run.name=one", "data=table", "data.path=train.csv", "data.test_path=test.csv")
COLUMNS = ("data.number_columns=[x,y]", "data.label_column=kind")


def test_a_clean_table_of_numbers(numbers, command):
    answer = command(*TABLE, *COLUMNS)
    assert answer.code == 0, answer.err
    found = result(numbers)
    assert found["train"] == {"examples": 10, "classes": {"a": 5, "b": 5}, "bad": 0}
    assert (found["duplicates"]["count"], found["two_classes"]["count"]) == (0, 0)
    assert answer.out.endswith("\nThe data can be trained on.\n")


def test_rows_of_numbers_that_repeat_are_named(numbers, command):
    with (numbers / "train.csv").open("a") as file:
        file.write("\n3.0,0.75,a\n")  # row 12, which is row 5 of another class
    with (numbers / "test.csv").open("a") as file:
        file.write("\n8,2e0,a\n8,2.5,a")  # row 6, which is row 10 of the training table, and one that is not
    answer = command(*TABLE, *COLUMNS)
    assert answer.code == 0, answer.err
    found = result(numbers)
    assert found["duplicates"]["examples"] == [{"train": "train.csv, row 10", "test": "test.csv, row 6"}]
    assert found["two_classes"]["examples"] == [{"a": "train.csv, row 12", "b": "train.csv, row 5"}]
    assert "warning: 1 test input is also in the training split, number for number" in answer.err
    assert "warning: 1 input in two classes, number for number" in answer.err
    assert answer.out.endswith(
        "Look at this before you train: 1 test input also in the training split, 1 input in two classes.\n"
    )


def test_texts_without_classes(tmp_path, command):
    lines = [*(f"line {number}" for number in range(8)), "line 0", "caf\u00e9"]
    (tmp_path / "t.txt").write_bytes("\n".join(lines).encode("latin-1"))
    data = ("data=texts", f"data.path={tmp_path / 't.txt'}")
    answer = command("job=check", "run.name=one", "task=masked_tokens", *data)
    assert answer.code == 3, answer.err
    assert "t: texts without classes" in answer.out
    found = result(tmp_path)
    assert {split: (found[split]["examples"], found[split]["bad"]) for split in ("train", "test")} == {
        "train": (7, 1),
        "test": (2, 0),
    }
    assert found["train"]["tokens"] == {"min": 6, "median": 6, "max": 6}
    assert [example["name"] for example in found["bad"]["examples"]] == [f"{tmp_path / 't.txt'}, line 10"]


def test_texts_of_packed_rows_are_compared_one_by_one(tmp_path, command):
    lines = [*(f"line {number}" for number in range(8)), "line 0", "x"]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    data = ("data=texts", f"data.path={tmp_path / 't.txt'}")
    answer = command("job=check", "run.name=one", "task=next_token", *data, "data.val_fraction=0")
    assert answer.code == 0, answer.err
    found = result(tmp_path)
    assert {split: (found[split]["examples"], found[split]["bad"]) for split in ("train", "test")} == {
        "train": (7, 0),
        "test": (2, 0),
    }
    assert found["duplicates"]["count"] == 1


def test_texts_with_special_tokens_are_counted_before_they_are_cut(tmp_path, command):
    tokenizer = save(make_tokenizer(template(**CLS_PAIR)), tmp_path / "tokenizer.json")
    texts = ["a", "a b c", "a a a a a a"] * 4
    (tmp_path / "t.csv").write_text("\n".join(["text,kind", *(f"{text},{'xy'[len(text) > 5]}" for text in texts)]))
    data = ("data=table", f"data.path={tmp_path / 't.csv'}", "data.text_column=text", f"data.tokenizer={tokenizer}")
    answer = command("job=check", "run.name=one", *data, "data.length=4", "data.test_fraction=0.34")
    assert answer.code == 0, answer.err
    found = result(tmp_path)
    assert {found[split]["tokens"]["max"] for split in ("train", "test")} == {8}
    assert found["train"]["tokens"]["min"] == 3
    assert found["train"]["cut"] + found["test"]["cut"] == 8
    assert "8 of 12 texts are cut to 4 tokens, 2 special ones among them (data.length)" in answer.out
    assert re.search(r"split +texts +tokens +cut +bad", answer.out)


def test_ids_are_not_counted_up(tmp_path, command):
    np.savez(tmp_path / "t.npz", tokens=np.array([[2**31 - 2, 1, 2], [3, 4, 5]] * 6))
    answer = command("job=check", "run.name=one", "task=masked_tokens", "data=npz", f"data.path={tmp_path / 't.npz'}")
    assert answer.code == 0, answer.err
    assert result(tmp_path)["train"]["tokens"] == {"min": 3, "median": 3, "max": 3}
