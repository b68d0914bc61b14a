"""Writes what a new user has: photos/ of digits, ten odd files among them, new/ to ask about, weights of a Keras model.

Run by walk.py, in the environment of the wheel.
"""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
from PIL import Image

from accumtrain.keras import load_digits

PHOTOS = 100  # of each digit at most
DEGREES = 3  # the EXIF value of a camera held upside down


def main() -> None:
    (images, labels), (new, _) = load_digits()
    for digit in range(10):
        folder = Path("photos", str(digit))
        folder.mkdir(parents=True)
        for number, image in enumerate(pixels_of(images[labels == digit][:PHOTOS])):
            Image.fromarray(image).resize((32, 32)).save(folder / f"{number:03}.png")
    write_odd_files(Path("photos", "7"), Image.open("photos/7/000.png"))
    Path("new").mkdir()
    for number, image in enumerate(pixels_of(new[:6])):
        Image.fromarray(image).resize((40, 40)).save(f"new/{number}.png")
    Path("new", "notes.txt").write_text("call Ada\n")
    Path("new", "broken.png").write_bytes(b"\x89PNG\r\n")
    train_on_five(images[labels < 5], labels[labels < 5])


def train_on_five(images: np.ndarray, labels: np.ndarray) -> None:
    """Weights of a network that knows five digits."""
    model = keras.applications.MobileNetV3Small(
        weights=None, input_shape=(32, 32, 3), classes=5, include_preprocessing=False
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    large = np.repeat(keras.ops.image.resize(images, (32, 32)), 3, axis=-1)
    model.fit(large, labels, batch_size=32, epochs=5, verbose=0)
    model.save("trained.keras")


def pixels_of(images: np.ndarray) -> np.ndarray:
    """uint8 [N, 8, 8], from float32 [N, 8, 8, 1] of any scale."""
    return np.uint8(np.interp(images[..., 0], [images.min(), images.max()], [0, 255]))


def write_odd_files(folder: Path, photo: Image.Image) -> None:
    """The ten: five of them are photos all the same."""
    half = (folder / "000.png").read_bytes()[:60]
    (folder / "empty.png").touch()
    (folder / "half.png").write_bytes(half)
    (folder / "a page.png").write_text("<html>not found</html>")
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / "notes.txt").write_text("the best of them is 003")
    exif = Image.Exif()
    exif[0x0112] = DEGREES
    photo.rotate(180).save(folder / "upside down.jpg", exif=exif)
    photo.convert("CMYK").save(folder / "printed.jpg")
    photo.save(folder / "new format.webp")
    photo.save(folder / "old format.bmp")
    Image.fromarray(np.asarray(photo).astype(np.uint16) * 257).save(folder / "deep.png")


if __name__ == "__main__":
    main()
