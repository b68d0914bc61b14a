"""The value of each pixel of a mask is a class, and what is none is refused with a remedy that is one."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from accumtrain.data.config import FolderConfig
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.masks.source import open_masked_folder
from accumtrain.data.masks.values import BadMask, read_mask
from accumtrain.data.source import Wanted
from accumtrain.errors import AccumtrainError, DataError
from accumtrain.fields import MASKS, NONE
from tests.data.masks.pictures import count_pixels, draw_mask, evaluate, open_composed, open_pairs, save, save_pairs

RED, GREEN, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 0)


def write(file: Path, pixels: np.ndarray, mode: str | None = None) -> bytes:
    save(file, pixels, mode)
    return file.read_bytes()


def recolour(mask: np.ndarray, *colours: Any) -> np.ndarray:
    return np.array(colours)[mask].astype(np.uint16 if np.max(colours) > 255 else np.uint8)


def save_recoloured(folder: Path, *colours: Any, mode: str | None = None) -> list[np.ndarray]:
    """Save pairs, whose masks have these values or colours in place of classes. Return the classes."""
    masks = [draw_mask(number, classes=len(colours)) for number in range(6)]
    for number, mask in enumerate(masks):
        save(folder / "images" / f"{number}.png", np.stack([mask] * 3, -1))
        save(folder / "masks" / f"{number}.png", recolour(mask, *colours), mode)
    return masks


# ---- one mask


MASK = draw_mask(0)


@pytest.mark.parametrize(
    ("pixels", "mode", "expected"),
    [
        (MASK, None, MASK),
        (MASK, "P", MASK),
        (MASK > 0, None, MASK > 0),
        (MASK * np.uint16(1000), None, MASK.astype(int) * 1000),
        (np.stack([MASK] * 3, -1), None, MASK),
        (np.stack([MASK] * 3 + [np.full_like(MASK, 255)], -1), None, MASK),
        (np.stack([MASK, np.full_like(MASK, 255)], -1), None, MASK),
    ],
    ids=["grey", "palette", "1 bit", "16 bits", "RGB", "RGBA", "LA"],
)
def test_a_mask_is_read_as_its_values(tmp_path, pixels, mode, expected):
    np.testing.assert_array_equal(read_mask(write(tmp_path / "a.png", pixels, mode)), expected)


def test_a_colour_is_no_value(tmp_path):
    values = read_mask(write(tmp_path / "a.png", recolour(MASK, RED, GREEN, (9, 9, 9))))
    assert len(np.unique(values)) == 3
    assert values[MASK == 2].tolist() == [9] * (MASK == 2).sum()
    assert values[MASK != 2].min() > 65535


def animate(file: Path) -> None:
    Image.fromarray(MASK).save(file, save_all=True, append_images=[Image.fromarray(MASK + 1)])


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.jpg", lambda file: save(file, MASK), "is a JPEG, .*: save masks as PNG"),
        ("a.gif", animate, "has 2 pictures: save a mask of one"),
        ("a.png", lambda file: file.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(9)), "can't be read as a picture: save"),
        ("a.tif", lambda file: Image.fromarray(MASK.astype(np.float32)).save(file), "mode F: save whole numbers"),
        ("a.png", lambda file: save(file, np.stack([MASK] * 4, -1)), "transparent pixels, .*: save it without an"),
    ],
    ids=["JPEG", "GIF", "damaged", "floats", "transparent"],
)
def test_a_picture_without_exact_values_is_refused(tmp_path, name, make, message):
    make(tmp_path / name)
    with pytest.raises(BadMask, match=message):
        read_mask((tmp_path / name).read_bytes())


def test_a_truncated_mask_is_never_read_as_another(tmp_path):
    whole = write(tmp_path / "a.png", draw_mask(0, 50, 50))
    for end in range(0, len(whole) - 12, 7):
        with suppress(BadMask):  # or else only a checksum is missing
            np.testing.assert_array_equal(read_mask(whole[:end]), draw_mask(0, 50, 50))


# ---- the classes of values


@pytest.mark.parametrize(
    ("colours", "mode", "keys", "names"),
    [
        ((0, 1, 2), None, {}, []),
        ((0, 1, 2), "P", {}, []),
        ((0, 255), None, {}, []),
        ((0, 7, 23), None, {"mask_classes": {"road": 0, "car": 7, "sky": 23}}, ["road", "car", "sky"]),
        ((0, 7, 65535), None, {"mask_classes": {"road": 0, "car": 7, "sky": 65535}}, ["road", "car", "sky"]),
        ((BLACK, RED, GREEN), None, {"mask_classes": {"no": [0, 0, 0], "a": [255, 0, 0], "b": [0, 255, 0]}},
            ["no", "a", "b"]),
        ((BLACK, RED, GREEN), None, {"mask_classes": {"no": 0, "a": [255, 0, 0], "b": [0, 255, 0]}}, ["no", "a", "b"]),
    ],
    ids=["numbers", "palette", "0 and 255", "holes", "16 bits", "colours", "colours and a grey value"],
)  # fmt: skip
def test_values_become_classes(tmp_path, colours, mode, keys, names):
    masks = save_recoloured(tmp_path, *colours, mode=mode)
    data = open_pairs(tmp_path, **keys)
    assert (data.num_classes, data.class_names) == (len(colours), names)
    found = evaluate(data, batch=2)
    numbers = [int(file.stem) for file in data.test.files]
    np.testing.assert_array_equal(found["mask"], [masks[number] for number in numbers])


@pytest.mark.parametrize(
    ("colours", "keys"),
    [
        ((0, 1, 255), {"ignore": 255}),
        ((0, 1, 255), {"ignore": [255]}),
        ((0, 1, 255), {"ignore": [255, 7]}),
        ((0, 1, RED), {"ignore": [[255, 0, 0]]}),
        ((GREEN, BLACK, RED), {"ignore": [255, 0, 0], "mask_classes": {"a": [0, 255, 0], "b": [0, 0, 0]}}),
        ((GREEN, RED, BLACK), {"ignore": [0, 0, 0], "mask_classes": {"a": [0, 255, 0], "b": [255, 0, 0]}}),
    ],
    ids=["number", "list", "two", "list of a colour", "colour", "black"],
)
def test_ignored_pixels_have_no_class(tmp_path, colours, keys):
    colours = tuple((each,) * 3 if isinstance(each, int) and RED in colours else each for each in colours)
    masks = save_recoloured(tmp_path, *colours)
    data = open_pairs(tmp_path, **keys)
    assert data.num_classes == 2
    found = evaluate(data, batch=2)["mask"]
    expected = np.array([masks[int(file.stem)] for file in data.test.files]).astype(int)
    np.testing.assert_array_equal(found, np.where(expected == 2, NONE, expected))
    assert data.train.position_counts.sum(0).tolist() == count_pixels(
        [masks[int(file.stem)] for file in data.train.files])[:2]  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mask_classes": {"a": 0, "b": [0, 0, 0]}}, "0 is there twice; give each class"),
        ({"mask_classes": {"a": 0, "b": 1}, "ignore": 1}, "1 is there twice"),
        ({"mask_classes": {"a": 3}}, "names one class, and it takes two to tell apart; name another"),
        ({"mask_classes": {"a": 0, "b": [1, 2]}}, r"mask_classes.b=\[1,2\]: must be a value from 0 to 65535, or"),
        ({"ignore": 70000}, "ignore=70000: must be a value"),
        ({"ignore": [[1, 1, 256]]}, r"ignore=\[1,1,256\]: must be"),
        ({"margin": 3}, "margin=3: there are no crops; add data.crop=256"),
        ({"balanced_crops": True}, "balanced_crops=true: there are no crops; add data.crop=256"),
        ({"crop": 16, "margin": 8}, "leaves nothing of a tile of 16 x 16; use less than 8"),
        ({"crop": 15, "margin": 8}, "use less than 8"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(tmp_path, keys, message):
    with pytest.raises(AccumtrainError, match=message):
        open_pairs(tmp_path, **keys)


def test_masks_with_one_value_teach_nothing(tmp_path):
    save_recoloured(tmp_path, 5)
    with pytest.raises(DataError, match=r"values 5 \(288 pixels\), and it takes two classes .*: give masks with more"):
        open_pairs(tmp_path)


def test_ignored_masks_teach_nothing(tmp_path):
    save_recoloured(tmp_path, 0, 1)
    with pytest.raises(DataError, match=r"all pixels of the masks are ignored by data.ignore=\[0,1\]: correct it"):
        open_pairs(tmp_path, ignore=[0, 1])


# ---- remedies


class Row(NamedTuple):
    """Masks that are refused, and the remedy of the message: a pattern of the overrides in it."""

    colours: tuple[Any, ...]
    overrides: tuple[str, ...]
    remedy: str
    classes: int


NAMES = r"'(data\.mask_classes=\{[^']*\})'"
IGNORE = r"set (data\.ignore=[^ ;]+?)(?: if|;|,? or)"
NAMED = "data.mask_classes={a:0,b:1}"
ROWS = {
    "holes": Row((0, 7, 23), (), NAMES, 3),
    "holes beside what is ignored": Row((0, 7, 23, 99), ("data.ignore=99",), NAMES, 3),
    "from 1": Row((1, 2, 3), (), NAMES, 3),
    "colours": Row((RED, GREEN), (), NAMES, 2),
    "colours and black": Row((RED, GREEN, BLACK), (), NAMES, 3),
    "colours beside what is ignored": Row((RED, GREEN, BLACK), ("data.ignore=0",), NAMES, 2),
    "255, ignored": Row((0, 1, 2, 255), (), IGNORE, 3),
    "255, named": Row((0, 1, 2, 255), (), NAMES, 4),
    "255 beside what is ignored": Row((0, 1, 255, 99), ("data.ignore=99",), IGNORE, 2),
    "unknown": Row((0, 1, 9), (NAMED,), IGNORE, 2),
    "two unknown": Row((0, 1, 9, 12), (NAMED,), IGNORE, 2),
    "unknown beside what is ignored": Row((0, 1, 9, 255), (NAMED, "data.ignore=255"), IGNORE, 2),
    "an unknown colour": Row(
        (BLACK, RED, GREEN), ("data.mask_classes={a:[0,0,0],b:[255,0,0]}",), IGNORE, 2),
    "an unknown grey among colours": Row(
        (BLACK, RED, GREEN), ("data.mask_classes={a:[0,255,0],b:[255,0,0]}",), IGNORE, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_remedy_for_values_is_one(tmp_path, name):
    row = ROWS[name]
    save_recoloured(tmp_path, *row.colours)
    command = ("data=folder", f"data.path={tmp_path}", *row.overrides)
    with pytest.raises(DataError) as refused:
        open_composed(*command)
    match = re.search(row.remedy, str(refused.value))
    assert match, refused.value
    replaced = match[1].partition("=")[0]
    kept = [override for override in command if override.partition("=")[0] != replaced]
    assert open_composed(*kept, match[1]).num_classes == row.classes


def bad_jpeg(folder: Path) -> None:
    (folder / "masks" / "3.png").unlink()
    save(folder / "masks" / "3.jpg", draw_mask(3))


@pytest.mark.parametrize(
    "damage",
    [
        bad_jpeg,
        lambda folder: (folder / "masks" / "3.png").write_bytes(b"no picture"),
        lambda folder: (folder / "images" / "3.png").write_bytes(b"no picture"),
        lambda folder: save(folder / "masks" / "3.png", draw_mask(3, 5, 8)),
        lambda folder: save(folder / "masks" / "3.png", np.stack([draw_mask(3)] * 4, -1)),
    ],
    ids=["JPEG", "mask", "image", "size", "transparent"],
)
def test_a_file_that_cant_be_used_is_refused_by_name_or_left_out(tmp_path, damage):
    masks = save_pairs(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=r"3\.\w+ .*, or set (data.on_error=skip) to go on without"):
        open_pairs(tmp_path)
    data = open_composed("data=folder", f"data.path={tmp_path}", "data.on_error=skip", "data.test_fraction=0.5")
    assert [Path(bad["name"]).stem for bad in data.skipped] == ["3"]
    counts = sum(split.position_counts.sum(0) for split in data.splits.values())
    assert counts.tolist() == count_pixels([mask for number, mask in enumerate(masks) if number != 3])


# ---- asked of a trained run


def ask(folder: Path, names: list[str], **keys: Any) -> Callable[[], Any]:
    config = FolderConfig(path=str(folder), **keys)
    return lambda: open_masked_folder(config, Wanted(of_run=TrainedOn(None, MASKS, names)))  # type: ignore[arg-type]


def test_a_trained_run_reads_masks_as_its_own(tmp_path):
    masks = save_recoloured(tmp_path, 0, 1)
    source = ask(tmp_path, ["0", "1", "2"])()
    assert source.test is None
    assert source.train.position_counts.sum(0).tolist() == [*count_pixels(masks, 2), 0]


def test_a_value_that_a_trained_run_does_not_know_is_refused_with_its_remedy(tmp_path):
    save_recoloured(tmp_path, 0, 1, 2)
    with pytest.raises(DataError, match=r"value 2 in 16 pixels, .*1 more: set data.ignore=2 if") as refused:
        ask(tmp_path, ["0", "1"])()
    assert "mask_classes" not in str(refused.value)
    assert ask(tmp_path, ["0", "1"], ignore=2)().num_classes == 2


def test_masks_of_white_are_of_the_second_of_two_classes(tmp_path):
    save_recoloured(tmp_path, 255)
    assert ask(tmp_path, ["0", "1"])().train.position_counts.sum(0).tolist() == [0, 6 * 48]
