"""The remedy of a message about data is followed to the letter, and then the data is read."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.open_data import explain_input_error, open_data
from accumtrain.data.pipeline import make_train_batches
from accumtrain.errors import AccumtrainError
from tests.contract.files import idx
from tests.data.conftest import example, flip_bit, picture, png, write_records

Compose = Callable[..., Any]
NUMBERS, TESTED = range(12), range(12, 18)
LABELS, TEXTS = np.array(NUMBERS) % 3, np.array(["ant", "bee", "cat"])
PIXELS = np.stack([picture(number) for number in NUMBERS])


def npz(**arrays: Any) -> None:
    np.savez("mine.npz", **{"images": PIXELS, "labels": LABELS, **arrays})


def records(stored: Callable[[int], dict[str, Any]] = lambda number: {}) -> None:
    for split, numbers in {"train": NUMBERS, "test": TESTED}.items():
        features = [{"image": png(number), "label": number % 3, **stored(number)} for number in numbers]
        write_records(Path(f"{split}-0"), *map(example, features))


def named(number: int) -> dict[str, Any]:
    return {"label": TEXTS[number % 3].encode()}


def files(content: Callable[[int], bytes] = png) -> None:
    for number in NUMBERS:
        file = Path("photos", TEXTS[number % 3], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content(number))


def compressed() -> None:
    records()
    Path("train-0").write_bytes(gzip.compress(Path("train-0").read_bytes()))


def gunzip(_: re.Match[str]) -> None:
    Path("train-0").write_bytes(gzip.decompress(Path("train-0").read_bytes()))


def damaged() -> None:
    records()
    flip_bit(Path("train-0"), -30)


def evaluated(labels: np.ndarray) -> Callable[[re.Match[str]], None]:
    """Save the labels as the code in the message says."""
    return lambda remedy: npz(labels=eval(remedy[1], {"labels": labels}))


def given(write: Callable[..., None], *arguments: Any, **arrays: Any) -> Callable[..., None]:
    """Write data with these arguments, whatever the message says."""
    return lambda *_: write(*arguments, **arrays)


def idx_files(test_height: int = 6) -> None:
    Path("mnist").mkdir(exist_ok=True)
    for word, numbers, height in (("train", NUMBERS, 6), ("t10k", TESTED, test_height)):
        pixels = np.stack([picture(number, height)[..., 0] for number in numbers])
        Path("mnist", f"{word}-images-idx3-ubyte").write_bytes(idx(pixels))
        Path("mnist", f"{word}-labels-idx1-ubyte").write_bytes(idx(np.array(numbers) % 3))


def images_as_labels() -> None:
    idx_files()
    Path("mnist", "t10k-images-idx3-ubyte").replace(Path("mnist", "t10k-labels-idx1-ubyte"))


def renamed(_: re.Match[str]) -> None:
    Path("mnist", "t10k-labels-idx1-ubyte").rename(Path("mnist", "t10k-images-idx3-ubyte"))
    Path("mnist", "t10k-labels-idx1-ubyte").write_bytes(idx(np.array(TESTED) % 3))


def heic(number: int) -> bytes:
    return bytes(4) + b"ftypheic" + bytes(40)


def one_heic(number: int) -> bytes:
    return png(number) if number else heic(number)


NPZ = ("data=npz", "data.path=mine.npz", "data.val_fraction=0")
TFRECORD = ("data=tfrecord", "data.path=train-*", "data.test_path=test-*", "data.num_classes=3")
FEATURES = ("data.image_feature=image", "data.label_feature=label")
TWO_CLASSES = (*TFRECORD[:3], "data.num_classes=2", *FEATURES)
IDX = ("data=idx", "data.path=mnist", "data.mean=[0.5]", "data.std=[0.25]")
FOLDER = ("data=folder", "data.path=photos", "data.val_fraction=0")
OVERRIDE = r"(data\.\w+=\w+)"


class Row(NamedTuple):
    """A command that is refused, and its remedy."""

    make: Callable[[], None]  # writes the data
    arguments: tuple[str, ...]
    remedy: str  # a pattern of the message, whose groups that are overrides are added to the command
    then: Callable[[re.Match[str]], None] | str | None = None  # what else is done; or the override in their place


UNIT, BINARY = (PIXELS / 255).astype(np.float32), PIXELS // 128
OBJECTS, TEXT_OBJECTS = LABELS.astype(object), TEXTS[LABELS].astype(object)
SINGLE = {"labels": np.arange(12) // 11}
ARRAYS = {
    "objects": Row(given(npz, labels=OBJECTS), NPZ, r"by (labels\.astype\('int64'\))", evaluated(OBJECTS)),
    "texts as objects": Row(
        given(npz, labels=TEXT_OBJECTS), NPZ, r"by (labels\.astype\(str\))", evaluated(TEXT_OBJECTS)),
    "texts and numbers": Row(
        given(npz, test_images=PIXELS[:3], test_labels=TEXTS), NPZ, "save all labels as texts, or all as numbers",
        given(npz, labels=TEXTS[LABELS], test_images=PIXELS[:3], test_labels=TEXTS)),
    "halves": Row(given(npz, labels=LABELS / 2), NPZ, "give the classes as whole numbers from 0",
        given(npz, labels=np.floor(LABELS))),
    "several classes": Row(
        given(npz, labels=np.ones([12, 3])), NPZ, "give a single 1 beside zeros", given(npz, labels=np.eye(3)[LABELS])),
    "a single example": Row(
        given(npz, **SINGLE), NPZ, "or the arrays test_images and test_labels",
        given(npz, **SINGLE, test_images=PIXELS[:2], test_labels=LABELS[:2])),
    "two scales": Row(
        given(npz, images=PIXELS * 1.0, test_images=UNIT[:3], test_labels=LABELS[:3]), NPZ,
        f"set {OVERRIDE} if 255 is white"),
    "two scales, saved again": Row(
        given(npz, images=PIXELS * 1.0, test_images=UNIT[:3], test_labels=LABELS[:3]), NPZ, "or all as floats of 0..1",
        given(npz, images=UNIT, test_images=UNIT[:3], test_labels=LABELS[:3])),
    "0 and 1": Row(given(npz, images=BINARY), NPZ, f"set {OVERRIDE} if 1 is white"),
    "0 and 1 of 255": Row(given(npz, images=BINARY), NPZ, f"or set {OVERRIDE} if 255 is white"),
    "two sizes": Row(
        given(npz, test_images=PIXELS[:3, :5], test_labels=LABELS[:3]), NPZ,
        "unless (data.image_size) is set", "data.image_size=8"),
    "no validation": Row(
        given(npz, images=PIXELS[:3], labels=LABELS[:3], test_images=PIXELS[:3], test_labels=LABELS[:3]), NPZ[:2],
        f"or set {OVERRIDE} to validate"),
    "three means": Row(
        given(npz, images=PIXELS[..., :1]), (*NPZ, "data.mean=[0.1,0.2,0.3]"),
        r"the images have 1 channel\(s\); give 1", "data.mean=[0.1]"),
    "inception": Row(
        npz, (*NPZ, "data.augment=inception"), r"set (data.image_size), for example to (\d+)", "data.image_size=224"),
}  # fmt: skip
SHARDS = {
    "image elsewhere": Row(
        records, (*TFRECORD, FEATURES[1]),
        r"set (data\.image_feature) to one of its features: (\w+) \(bytes_list", "data.image_feature=image"),
    "label elsewhere": Row(
        records, (*TFRECORD, FEATURES[0]),
        r"set (data\.label_feature) to one of its features: .*, (\w+) \(int64_list", "data.label_feature=label"),
    "label is a picture": Row(
        records, (*TFRECORD, FEATURES[0], "data.label_feature=image"),
        r"or set (data\.label_feature) to one of its features: (\w+) \(int64_list", "data.label_feature=label"),
    "text": Row(
        given(records, named), TFRECORD + FEATURES,
        r"in their order, as in data\.class_names=\[ant,...\]", "data.class_names=[ant,bee,cat]"),
    "names without a number": Row(
        given(records, named), (*TWO_CLASSES, "data.class_names=[ant,bee,cat]"), f"set {OVERRIDE}"),
    "a misspelt name": Row(
        given(records, named), (*TFRECORD, *FEATURES, "data.class_names=[ants,bee,cat]"),
        "not one of data.class_names: did you mean ants", "data.class_names=[ant,bee,cat]"),
    "half a class": Row(
        given(records, lambda number: {"label": 0.5, "class": number % 3}), TFRECORD + FEATURES,
        r"or set (data\.label_feature) to one of its features: (class) \(int64_list", "data.label_feature=class"),
    "too many classes": Row(
        records, TWO_CLASSES, "with data.num_classes=2 labels are 0..1: correct the labels", "data.num_classes=3"),
    "raw pixels": Row(
        given(records, lambda number: {"image": picture(number).tobytes()}), TFRECORD + FEATURES,
        r"or set data\.raw_shape=\[height,width,channels\] if these are pixels", "data.raw_shape=[6,6,3]"),
    "files as raw pixels": Row(
        records, (*TFRECORD, *FEATURES, "data.raw_shape=[6,6,3]"),
        "or leave it out for images of a file format", "data.raw_shape=null"),
    "sizes of records": Row(
        given(records, lambda number: {"image": png(number, 6 + number, 6)}), TFRECORD + FEATURES,
        "set (data.image_size) to resize all", "data.image_size=6"),
    "compressed": Row(compressed, TFRECORD + FEATURES, "unpack it with gunzip", gunzip),
    "damaged": Row(damaged, TFRECORD + FEATURES, f"or set {OVERRIDE} to go on without it"),
}  # fmt: skip
FILES = {
    "an HEIC": Row(given(files, one_heic), FOLDER, f"or set {OVERRIDE} to go on without them"),
    "only HEICs": Row(
        given(files, heic), (*FOLDER, "data.on_error=skip"),
        "none of .* is an HEIC, .*: replace it by a PNG, JPEG, WebP, TIFF, GIF or BMP, or remove it$", given(files)),
    "sizes of files": Row(
        given(files, lambda number: png(number, 6 + number, 6)), FOLDER,
        "set (data.image_size) to resize all", "data.image_size=6"),
    "large": Row(files, (*FOLDER, "data.max_pixels=35"), f"or set {OVERRIDE}, or set data.on_error"),
}  # fmt: skip
IDX_FILES = {
    "two sizes of idx": Row(
        given(idx_files, 8), IDX, "or set (data.image_size), to which all are resized", "data.image_size=6"),
    "no folder of idx": Row(
        idx_files, (IDX[0], "data.path=digits", *IDX[2:]), "(data.path)=digits is not a directory: give the folder",
        "data.path=mnist"),
    "a class without a name": Row(
        idx_files, (*IDX, "data.class_names=[ant,bee]"), "(data.class_names) names 2 classes, 0..1: name all classes",
        "data.class_names=[ant,bee,cat]"),
    "images as labels": Row(
        images_as_labels, IDX, "has no t10k-images-idx3-ubyte, plain or .gz, .* give the folder that holds", renamed),
}  # fmt: skip
ROWS = {**ARRAYS, **SHARDS, **FILES, **IDX_FILES}
FAST = (*IDX_FILES, "texts as objects", "two scales", "text", "raw pixels")


def read(compose: Compose, arguments: tuple[str, ...]) -> None:
    data = open_data(compose(*arguments).data, seed=0)
    try:
        list(make_train_batches(data, batch=data.train.size, first=0, seed=0).take(1))
    except tf.errors.OpError as error:
        raise explain_input_error(error, data) or error from error


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]
)
def test_the_remedy_is_one(compose, tmp_path, monkeypatch, streamed, name):
    monkeypatch.chdir(tmp_path)
    row = ROWS[name]
    row.make()
    with pytest.raises(AccumtrainError) as refused:
        read(compose, row.arguments)
    match = re.search(row.remedy, str(refused.value))
    assert match, refused.value
    advised = [group for group in match.groups() if group.startswith("data.")]
    if isinstance(row.then, str):
        overrides = [row.then]
        assert advised in ([], [overrides[0].partition("=")[0]])
    else:
        overrides = advised
        assert row.then or overrides
    if callable(row.then):
        row.then(match)
    replaced = {override.partition("=")[0] for override in overrides}
    kept = [argument for argument in row.arguments if argument.partition("=")[0] not in replaced]
    read(compose, (*kept, *overrides))


NAMED = {"label_feature": "name", "num_classes": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "remedy", "more"),
    [
        ({"label_feature": "note"}, r"label_feature=note: set it to one of label$", {"label_feature": "label"}),
        (NAMED, r"as in data\.class_names=\[\w+,\.\.\.\]", {"class_names": ["ant", "bee", "cat"]}),
        ({"num_classes": 4}, "leave it out", {"num_classes": None}),
        ({"image_feature": "photo"}, r"set it to one of image$", {"image_feature": "image"}),
    ],
    ids=["ClassLabel", "a text", "too many", "Image"],
)
def test_the_remedy_for_a_prepared_data_set(prepare_tfds, keys, remedy, more):
    with pytest.raises(AccumtrainError, match=remedy):
        make_train_batches(open_data(prepare_tfds("tfrecord", **keys), seed=0), batch=4, first=0, seed=0)
    make_train_batches(open_data(prepare_tfds("tfrecord", **{**keys, **more}), seed=0), batch=4, first=0, seed=0)


def test_a_path_with_a_zero_in_it_is_a_mistake(compose):
    with pytest.raises(AccumtrainError, match=r"data.path=a\\0...: a path can't hold a null character; leave it out"):
        compose("data=npz", r'data.path="a' + "\0" + r'b.npz"')
