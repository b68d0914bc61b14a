from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import DigitsConfig
from accumtrain.data.images import augment
from accumtrain.data.images.decode import central_window, decode, decode_window
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.open_data import open_data
from accumtrain.data.stream import hash64
from accumtrain.errors import ConfigError

KEYS = hash64(tf.range(400, dtype=tf.int64))


def photo(height: int = 40, width: int = 60) -> np.ndarray:
    """Smooth, so that JPEG keeps it."""
    y, x = np.mgrid[:height, :width]
    return np.stack([4 * y, 4 * x, 2 * (x + y)], axis=-1).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("flip", [False, True])
def test_crop_is_a_window_of_the_padded_image(flip):
    image = np.random.default_rng(0).normal(size=[5, 7, 3]).astype(np.float32)
    padded = np.pad(image, [(2, 2), (2, 2), (0, 0)])
    windows = {}
    for row in range(5):
        for column in range(5):
            window = padded[row : row + 5, column : column + 7]
            windows[window.tobytes()] = (row, column, False)
            windows[window[:, ::-1].tobytes()] = (row, column, True)
    crops = augment.random_crop(tf.repeat(image[None], 400, axis=0), KEYS, padding=2, flip=flip).numpy()
    found = [windows[crop.tobytes()] for crop in crops]
    rows, columns, mirrored = (np.array(part) for part in zip(*found, strict=True))
    for offsets in (rows, columns):
        assert np.sum((np.bincount(offsets, minlength=5) - 80) ** 2 / 80) < 18.5  # 4 degrees of freedom, p = 0.001
    assert (140 < mirrored.sum() < 260) if flip else mirrored.sum() == 0


def test_random_windows_keep_area_and_aspect():
    windows = np.stack([augment.random_window(tf.constant([300, 400, 3]), key) for key in KEYS[:100]])
    top, left, height, width = windows.T
    assert np.all((top >= 0) & (left >= 0) & (top + height <= 300) & (left + width <= 400))
    area, aspect = height * width / 120_000, width / height
    assert 0.049 < area.min() < 0.2
    assert 0.5 < area.max() <= 1
    assert 0.74 < aspect.min() < aspect.max() < 1.35
    assert len(np.unique(windows, axis=0)) == 100


def test_colour_jitter_is_bounded_and_keyed():
    image = tf.constant(photo() / 255, tf.float32)
    jittered = np.stack([augment.random_colour(image, key) for key in KEYS[:20]])
    assert 0 <= jittered.min() <= jittered.max() <= 1
    assert len(np.unique(jittered.reshape(20, -1), axis=0)) == 20
    np.testing.assert_array_equal(jittered[3], augment.random_colour(image, KEYS[3]))
    grey = augment.random_colour(image[..., :1], KEYS[0])
    assert grey.shape == (40, 60, 1)


def test_jpeg_window_is_the_window_of_the_whole():
    encoded = tf.io.encode_jpeg(photo(), quality=95)
    whole = decode(encoded, 3).numpy()
    window = decode_window(encoded, 3, lambda shape: tf.constant([8, 16, 20, 30])).numpy()
    assert np.abs(window.astype(int) - whole[8:28, 16:46]).max() <= 8  # chroma is upsampled differently at the edge
    png = tf.io.encode_png(photo())
    np.testing.assert_array_equal(decode_window(png, 3, central_window), photo()[2:37, 4:56])


@pytest.mark.parametrize("encode", [tf.io.encode_png, tf.io.encode_jpeg])
def test_inception_from_file_and_from_memory_agree(encode):
    inputs = Pixels((24, 24, 3), "inception", (24, 24), [0.5], [0.5], white=255)
    encoded = encode(photo())
    for training in (False, True):
        file = inputs.example(encoded, KEYS[0], training=training)
        memory = inputs.example(decode(encoded, 3), KEYS[0], training=training)
        assert file.shape == (24, 24, 3)
        np.testing.assert_allclose(file, memory, atol=0.05)


def test_normalisation_by_channel():
    inputs = Pixels((2, 2, 3), "none", None, [0.0, 0.5, 1.0], [1.0, 0.5, 0.25], white=255)
    batch = inputs.batch(tf.constant(255, tf.uint8, [1, 2, 2, 3]), KEYS[:1], training=True)
    np.testing.assert_array_equal(batch[0, 0, 0], [1.0, 1.0, 0.0])


def test_what_enters_at_the_edge():
    white = tf.constant(255, tf.uint8, [400, 8, 8, 1])
    shifted = Pixels((8, 8, 1), "shift", None, [0.25], [0.5], white=255).batch(white, KEYS, training=True)
    assert set(np.unique(shifted)) == {-0.5, 1.5}  # black
    cropped = Pixels((8, 8, 1), "crop_flip", None, [0.25], [0.5], white=255).batch(white, KEYS, training=True)
    assert set(np.unique(cropped)) == {0.0, 1.5}  # the mean


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": [0.1, 0.2, 0.3]}, r"data.mean=.*: the images have 1 channel"),
        ({"std": []}, r"data.std=\[\]: the images have 1 channel"),
        ({"augment": "inception"}, r"set data.image_size"),
    ],
)
def test_settings_that_do_not_fit(changes, message):
    config = DigitsConfig(**{"augment": "none", "image_size": None, "mean": [0.0], "std": [1.0], **changes})
    with pytest.raises(ConfigError, match=message):
        open_data(config, seed=0)
