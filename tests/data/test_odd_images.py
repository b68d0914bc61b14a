"""Images of every kind that people have among their photos: read as they look, or named."""

from __future__ import annotations

import io
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageOps

from accumtrain.data.config import FolderConfig
from accumtrain.data.images.decode import decode, decode_window, limit_pixels, read_size
from accumtrain.data.images.header import FORMATS, find_image_fault, read_unusual_headers
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import Dataset
from accumtrain.data.sources.builtin import load_digits
from accumtrain.errors import DataError
from tests.data.conftest import assert_refused

HEIGHT, WIDTH = 24, 32
LOSSY = 25  # of 255: what JPEG changes at the hard edges of these pictures


def photo(number: int = 7) -> Image.Image:
    """A digit, 24 x 32 pixels, in colours."""
    digit = np.kron(load_digits()[0][0][number, ..., 0] * 15, np.ones((3, 4))).astype(np.uint8)
    return Image.fromarray(np.stack([digit, 255 - digit, digit // 2], axis=-1))


def encoded(image: Image.Image, file_format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def transparent() -> Image.Image:
    image = photo().convert("RGBA")
    image.putalpha(Image.fromarray(np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint8)))
    return image


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


LOSSY_WEBP = encoded(photo(), "WEBP", quality=90)
LAB = Image.merge("LAB", photo().split())
SIXTEEN = (np.asarray(photo().convert("L")).astype(np.uint16) << 8) + 200


def sixteen_rgb() -> bytes:
    """A TIFF of 16 bits a channel in three channels, which Pillow reads but does not write."""
    content = bytearray(encoded(photo(), "TIFF"))
    with Image.open(io.BytesIO(content)) as image:
        bits = [*map(int, image.tag_v2[258])]
    place = content.index(np.array(bits, "<u2").tobytes())
    content[place : place + 6] = np.array([16] * 3, "<u2").tobytes()
    return bytes(content) + bytes(len(content))


SIXTEEN_RGB = sixteen_rgb()
# what is written, how it looks to people, and by how much a pixel may differ
GOOD = {
    "rgb.png": (encoded(photo(), "PNG"), photo(), 0),
    "palette.png": (encoded(photo().quantize(16), "PNG"), photo().quantize(16), 0),
    "palette_transparent.png": (encoded(photo().quantize(16), "PNG", transparency=3), photo().quantize(16), 0),
    "grey.png": (encoded(photo().convert("L"), "PNG"), photo().convert("L"), 0),
    "grey_alpha.png": (encoded(photo().convert("LA"), "PNG"), photo().convert("L"), 0),
    "alpha.png": (encoded(transparent(), "PNG"), photo(), 0),
    "black_and_white.png": (encoded(photo().convert("1"), "PNG"), photo().convert("1"), 0),
    "sixteen.png": (encoded(Image.fromarray(SIXTEEN), "PNG"), photo().convert("L"), 0),
    "rgb.jpg": (encoded(photo(), "JPEG", quality=98, subsampling=0), photo(), LOSSY),
    "progressive.jpg": (encoded(photo(), "JPEG", quality=98, subsampling=0, progressive=True), photo(), LOSSY),
    "grey.jfif": (encoded(photo().convert("L"), "JPEG", quality=98), photo().convert("L"), LOSSY),
    "cmyk.jpg": (encoded(photo().convert("CMYK"), "JPEG", quality=98), photo(), LOSSY),
    "lossless.webp": (encoded(photo(), "WEBP", lossless=True), photo(), 0),
    "lossy.webp": (LOSSY_WEBP, Image.open(io.BytesIO(LOSSY_WEBP)), 0),
    "alpha.webp": (encoded(transparent(), "WEBP", lossless=True, exact=True), photo(), 0),
    "24.bmp": (encoded(photo(), "BMP"), photo(), 0),
    "32.bmp": (encoded(transparent(), "BMP"), photo(), 0),
    "palette.bmp": (encoded(photo().quantize(16), "BMP"), photo().quantize(16), 0),
    "grey.bmp": (encoded(photo().convert("L"), "BMP"), photo().convert("L"), 0),
    "one_bit.bmp": (encoded(photo().convert("1"), "BMP"), photo().convert("1"), 0),
    "rgb.tif": (encoded(photo(), "TIFF"), photo(), 0),
    "packed.tiff": (encoded(photo(), "TIFF", compression="tiff_lzw"), photo(), 0),
    "palette.tif": (encoded(photo().quantize(16), "TIFF"), photo().quantize(16), 0),
    "grey.tif": (encoded(photo().convert("L"), "TIFF"), photo().convert("L"), 0),
    "one_bit.tif": (encoded(photo().convert("1"), "TIFF", compression="group4"), photo().convert("1"), 0),
    "alpha.tif": (encoded(transparent(), "TIFF"), photo(), 0),
    "cmyk.tif": (encoded(photo().convert("CMYK"), "TIFF"), photo(), 0),
    "still.gif": (encoded(photo().quantize(16), "GIF"), photo().quantize(16), 0),
    "transparent.gif": (encoded(photo().quantize(16), "GIF", transparency=3), photo().quantize(16), 0),
}
TWO = {"save_all": True, "append_images": [photo(8)]}
PROFILE = np.random.default_rng(0).bytes(9000)
GUESS = "so which of its values is white would be a guess"
UNCOMMON = "is a TIFF of more than 8 bits a channel, or of uncommon colours"
BAD = {
    "animated.png": (encoded(photo(), "PNG", **TWO), "is a PNG of several images, not a single one"),
    "animated_and_another.png": (
        encoded(photo(7), "PNG", **TWO, default_image=True),
        "is a PNG of several images, not a single one",
    ),
    "animated_behind_a_profile.png": (
        encoded(photo(), "PNG", **TWO, icc_profile=PROFILE),
        "is a PNG of several images, not a single one",
    ),
    "animated.webp": (encoded(photo(), "WEBP", **TWO), "is a WebP of several images, not a single one"),
    "animated.gif": (encoded(photo(), "GIF", **TWO), "is a GIF of several images, not a single one"),
    "pages.tif": (encoded(photo(), "TIFF", **TWO), "is a TIFF of several images, not a single one"),
    "sixteen.tif": (encoded(Image.fromarray(SIXTEEN), "TIFF"), f"{UNCOMMON} (I;16), {GUESS}"),
    "float.tif": (encoded(photo().convert("F"), "TIFF"), f"{UNCOMMON} (F), {GUESS}"),
    "lab.tif": (encoded(LAB, "TIFF"), f"{UNCOMMON} (LAB), {GUESS}"),
    "sixteen_rgb.tif": (SIXTEEN_RGB, f"{UNCOMMON} (RGB), {GUESS}"),
    "empty.bmp": (b"BM" + bytes(12) + b"\x0c" + bytes(60), "is a damaged BMP, or of a kind that can't be read"),
    "heic.jpeg": (b"\0\0\0\x18ftypheic" + bytes(60), f"is an HEIC, AVIF or video, not a {FORMATS}"),
    "wave.webp": (b"RIFF\0\0\0\0WAVEfmt " + bytes(60), "is a damaged WebP, or of a kind that can't be read"),
    "text.jpg": (b"no image at all", f"has no {FORMATS} inside"),
}
TRUNCATED = GOOD["rgb.jpg"][0][:600]
of_every_good = pytest.mark.parametrize("name", GOOD)
of_every_bad = pytest.mark.parametrize("name", BAD)


def pixels(image: Image.Image, channels: int) -> np.ndarray:
    return np.asarray(image.convert("RGB" if channels == 3 else "L"), int).reshape(*image.size[::-1], channels)


@cache
def reader(channels: int) -> tf.types.experimental.PolymorphicFunction:
    """The compiled functions of a pipeline: size, the whole image, and a window of it."""

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    def read(content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        content = limit_pixels(content, HEIGHT * WIDTH)
        return read_size(content), decode(content, channels), decode_window(content, channels, lambda _: [3, 2, 8, 5])

    return read


@of_every_good
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_is_decoded_as_it_looks(name, channels):
    content, image, tolerance = GOOD[name]
    assert find_image_fault(content) is None
    size, found, window = reader(channels)(tf.constant(content))
    assert size.numpy().tolist() == [HEIGHT, WIDTH]
    assert found.dtype == tf.uint8
    assert np.abs(found.numpy().astype(int) - pixels(image, channels)).max() <= tolerance + (channels == 1)
    np.testing.assert_array_equal(window, found[3:11, 2:7])


def chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + name + content + checksum


@pytest.mark.parametrize(
    "chunks",
    [
        chunk(b"acTL", (1).to_bytes(4, "big") + bytes(4)) + chunk(b"fcTL", bytes(26)),
        chunk(b"acTL", bytes(8)),  # none, which Pillow warns of
        chunk(b"tEXt", b"Title\0of acTL and IDAT"),
    ],
)
def test_a_png_of_one_image_may_say_so_or_speak_of_more(tmp_path, chunks):
    plain = encoded(photo(), "PNG")
    (tmp_path / "one.png").write_bytes(plain[:33] + chunks + plain[33:])
    assert read_unusual_headers([tmp_path / "one.png"]) == {}
    _, found, _ = reader(3)(tf.constant((tmp_path / "one.png").read_bytes()))
    np.testing.assert_array_equal(found, pixels(photo(), 3))


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 2**31 - 13, 10**6])
def test_a_png_whose_chunks_have_no_such_length_is_damaged(length):
    plain = encoded(photo(), "PNG")
    damaged = plain[:33] + (length % 2**32).to_bytes(4, "big") + b"tEXt" + plain[33:]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid PNG"):
        reader(3)(tf.constant(damaged))


@of_every_bad
def test_what_is_no_image_of_a_known_kind_never_reaches_a_decoder(name):
    content, fault = BAD[name]
    assert find_image_fault(content) == fault
    with pytest.raises(tf.errors.InvalidArgumentError):
        reader(3)(tf.constant(content))


@pytest.mark.parametrize("name", [name for name in GOOD if name.endswith((".webp", ".tif", ".tiff", ".gif", ".bmp"))])
def test_what_pillow_decodes_is_bounded_and_whole(name):
    content = GOOD[name][0]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
        limit_pixels(tf.constant(content), HEIGHT * WIDTH - 1)
    with pytest.raises(ValueError, match=r"can't be (decoded|read)"):
        decode(tf.constant(content[: len(content) // 3]), 3)


# ---- which side is up ----

TRANSPOSED = {  # what makes a photo of which EXIF says so: the inverse of what sets it upright
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.fixture
def turned(tmp_path):
    """The same photo in every orientation and format."""
    files = []
    for orientation, transposed in TRANSPOSED.items():
        stored = photo() if transposed is None else photo().transpose(transposed)
        for file_format in ("JPEG", "PNG", "WEBP", "TIFF"):
            options = {"JPEG": {"quality": 98, "subsampling": 0}, "WEBP": {"lossless": True}}.get(file_format, {})
            files.append(tmp_path / f"{orientation}.{file_format.lower()}")
            files[-1].write_bytes(encoded(stored, file_format, exif=exif(orientation), **options))
            shown = ImageOps.exif_transpose(Image.open(files[-1]))
            assert np.abs(pixels(shown, 3) - pixels(photo(), 3)).max() <= LOSSY, "Pillow agrees"
    return files


def predicted_on(files: list[Path], height: int, width: int, **keys: object) -> Dataset:
    config = FolderConfig(path="", image_size=[height, width], mean=[0.0], std=[1.0], **keys)
    inputs = Pixels.from_facts({"shape": [height, width, 3]}, config)
    return inputs.open_named(list(map(str, files)), config, "predict.input").data


@pytest.mark.parametrize("augment", ["none", "inception"])
def test_exif_orientation(turned, augment):
    expected = pixels(photo(), 3)
    if augment == "inception":  # the middle seven eighths, as they are
        expected = expected[1:22, 2:30]
    height, width, _ = expected.shape
    data = predicted_on(turned, height, width, augment=augment)
    (batch,) = make_eval_batches(data, batch=len(turned))
    assert np.abs(batch["inputs"] * 255 - expected[None]).max() <= LOSSY
    noted = 4 * (len(TRANSPOSED) - 1)
    assert data.notes[0].startswith(f"turned upright, as their EXIF orientation says: {noted} files: ")


def test_exif_behind_a_long_profile(tmp_path):
    jpeg = encoded(photo(), "JPEG", exif=exif(6))
    segment = b"\xff\xe2" + (6002).to_bytes(2, "big") + PROFILE[:6000]
    (tmp_path / "photo.jpg").write_bytes(jpeg[:2] + segment + jpeg[2:])
    (tmp_path / "photo.png").write_bytes(encoded(photo(), "PNG", exif=exif(6), icc_profile=PROFILE))
    (tmp_path / "plain.jpg").write_bytes(encoded(photo(), "JPEG", icc_profile=PROFILE))
    found = read_unusual_headers([*tmp_path.iterdir()])
    assert {file.name: header.orientation for file, header in found.items()} == {"photo.jpg": 6, "photo.png": 6}


@pytest.mark.parametrize("tag", [0, 9])
def test_an_orientation_that_is_none_is_ignored(tmp_path, tag):
    (tmp_path / "photo.jpg").write_bytes(encoded(photo(), "JPEG", exif=exif(tag)))
    assert predicted_on([tmp_path / "photo.jpg"], 8, 8).notes == []


def test_a_header_that_says_nonsense_is_no_error(tmp_path):
    content = bytearray(encoded(photo(), "JPEG", exif=exif(6)))
    place = content.index(b"Exif")
    content[place + 6 : place + 16] = b"\xff" * 10
    (tmp_path / "photo.jpg").write_bytes(content)
    (batch,) = make_eval_batches(predicted_on([tmp_path / "photo.jpg"], 8, 8), batch=1)
    assert batch["weight"].numpy().tolist() == [1]


# ---- a folder of digits with all of them in it ----


@pytest.fixture
def photos(tmp_path):
    for number in range(12):
        file = tmp_path / "photos" / f"class{number % 2}" / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        photo(number).save(file)
    for name, (content, _, _) in GOOD.items():
        (tmp_path / "photos" / "class0" / name).write_bytes(content)
    photo().transpose(Image.Transpose.ROTATE_90).save(tmp_path / "photos" / "class0" / "turned.jpg", exif=exif(6))
    return tmp_path / "photos"


def test_all_of_them_are_read_without_a_size(photos, folder_config):
    data = open_data(folder_config(photos), seed=0)
    assert (data.shape, data.train.size + data.test.size) == ((HEIGHT, WIDTH, 3), 12 + len(GOOD) + 1)
    names = f"{photos}/class0/"
    assert data.notes == [
        f"turned upright, as their EXIF orientation says: 1 file: {names}turned.jpg",
        f"16 bits a channel, of which the upper 8 are read: 1 file: {names}sixteen.png",
        f"CMYK, turned into RGB without its colour profile: 2 files: {names}cmyk.jpg, {names}cmyk.tif",
        "transparency, which is ignored: 6 files: "
        + ", ".join([names + name for name in sorted(GOOD) if "alpha" in name or "transp" in name][:5])
        + ", ...",
    ]
    for split in ("train", "test"):
        (batch,) = make_eval_batches(data, batch=data.splits[split].size, split=split)
        assert batch["weight"].numpy().all()


def test_bad_ones_are_named_or_left_out(photos, folder_config):
    for name, (content, _) in BAD.items():
        (photos / "class1" / name).write_bytes(content)
    (photos / "class1" / "truncated.jpg").write_bytes(TRUNCATED)
    assert_refused(folder_config(photos), rf"{len(BAD)} files named as an image can't be used: .*; \.\.\.: replace")
    data = open_data(folder_config(photos, on_error="skip"), seed=0)
    for split in ("train", "test"):
        list(make_eval_batches(data, batch=8, split=split))
    reasons = {name: reason for name, (_, reason) in BAD.items()}
    reasons["truncated.jpg"] = "can't be decoded as an image (600 bytes)"
    assert {Path(example["name"]).name: example["reason"] for example in data.skipped} == reasons


def test_more_pixels_than_data_max_pixels_or_pillow_likes(photos, folder_config, monkeypatch):
    def refused(**keys: object) -> str:
        data = open_data(folder_config(photos, image_size=8, **keys), seed=0)
        with pytest.raises(DataError) as error:
            [split.inspect(index) for split in data.splits.values() for index in range(split.size)]
        return str(error.value)

    Image.new("RGB", (60, 50)).save(photos / "class1" / "large.webp", lossless=True)
    assert "large.webp is 60 x 50 pixels, more than data.max_pixels=2000" in refused(max_pixels=2000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1400)  # of which Pillow takes twice as many
    assert_refused(
        folder_config(photos, image_size=8, max_pixels=4000),
        r"large\.webp has more than 178,956,970 pixels, the most of its kind whatever data\.max_pixels is",
    )
    (photos / "class1" / "large.webp").unlink()
    Image.new("RGB", (60, 50)).save(photos / "class1" / "large.tif")
    assert "large.tif can't be decoded" in refused(max_pixels=4000)


# ---- folders within folders ----


def test_the_class_is_the_folder_at_the_top(photos, folder_config):
    flat = open_data(folder_config(photos), seed=0)
    (photos / "class1").rename(photos.with_name("more"))
    (photos / "class1" / "more").mkdir(parents=True)
    photos.with_name("more").rename(photos / "class1" / "more" / "and more")
    data = open_data(folder_config(photos), seed=0)
    assert (data.class_names, data.train.size + data.test.size) == (["class0", "class1"], 12 + len(GOOD) + 1)
    note = next(note for note in data.notes if "inside" in note)
    assert note.startswith("in folders inside a class folder, and counted as that class: 6 files: ")
    assert flat.fingerprint["data.train.files"] != data.fingerprint["data.train.files"]


def test_files_of_one_name_in_two_folders_are_two(photos, folder_config):
    for inside in ("a", "b"):
        (photos / "class1" / inside).mkdir()
        photo(20).save(photos / "class1" / inside / "same.png")
    data = open_data(folder_config(photos), seed=0)
    assert data.train.size + data.test.size == 12 + len(GOOD) + 3
    assert not set(data.train.files) & set(data.test.files)


def test_a_link_to_a_folder_within_a_class_is_no_loop(photos, folder_config):
    (photos / "class1" / "loop").symlink_to(photos / "class1", target_is_directory=True)
    assert any(f"1 file: {photos}/class1/loop" in note for note in open_data(folder_config(photos), seed=0).notes)


def test_classes_one_level_too_deep_are_explained(photos, folder_config):
    photos.rename(photos.with_name("animals"))
    photos.mkdir()
    photos.with_name("animals").rename(photos / "animals")
    message = r"1 class folder.*if the classes are class0, class1, move them up from animals/"
    assert_refused(folder_config(photos), message)


@pytest.mark.parametrize(
    ("content", "words"),
    [({}, "and nothing else"), ({"a.avif": b"x", "b.heic": b"x"}, r"it has 2 files: .*a\.avif, .*heic")],
)
def test_an_empty_class_folder_says_what_is_in_it(photos, folder_config, content, words):
    (photos / "class2" / "inside").mkdir(parents=True)
    for name, text in content.items():
        (photos / "class2" / "inside" / name).write_bytes(text)
    assert_refused(folder_config(photos), rf"class folder .*class2 holds no image.*{words}: add some, or remove")
