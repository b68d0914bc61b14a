"""Segmentation: a U-Net of reversible blocks finds circles, squares, stars and rings. Needs matplotlib.

    python unet.py                    # pictures: 2 minutes on two cores
    python unet.py --memory store     # the plain twin: the same network, which keeps all activations
    python unet.py --dimensions 3     # volumes with balls, cubes, star prisms and shells

It prints the IoU (the shared area over the joined area) of each class in pictures larger than the patches that it was
trained on, and draws them into masks.png.
"""

import argparse
from itertools import product

import keras
import matplotlib
import numpy as np

from accumtrain.keras import ReversibleSequence, accumulate, recompute

matplotlib.use("Agg")
from matplotlib import pyplot

CLASSES = ("background", "circle", "square", "star", "ring")
SIZES = {  # by the number of dimensions
    2: {"patch": 64, "picture": 160, "examples": 512, "batch": 16, "epochs": 16},
    3: {"patch": 32, "picture": 48, "examples": 64, "batch": 4, "epochs": 20},
}


# --- data: pictures [side, side, 1], or volumes with one axis more, and the class of each pixel -----------------------


def draw(random: np.random.Generator, side: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Shapes of all kinds in uneven light and noise, float32 [side, ..., 1], and their labels, int32 [side, ...]."""
    places = np.indices((side,) * dimensions).astype("float32")
    labels = np.zeros((side,) * dimensions, "int32")
    light = np.full(labels.shape, 0.2, "float32")
    for kind in random.integers(1, len(CLASSES), size=max(4, 4 * (side // 64) ** dimensions)):
        size = random.uniform(6, 10)
        center = random.uniform(size, side - size, size=dimensions)
        x, y, *rest = (axis - middle for axis, middle in zip(places, center, strict=True))
        angle = random.uniform(0, np.pi)
        x, y = np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y
        radius, widest = np.sqrt(sum(axis**2 for axis in (x, y, *rest))), np.maximum.reduce(np.abs([x, y, *rest]))
        inside = {
            "circle": radius < size,
            "square": widest < 0.8 * size,
            "star": (np.hypot(x, y) < size * (0.65 + 0.35 * np.cos(5 * np.arctan2(y, x)))) & (widest < size),
            "ring": (radius < size) & (radius > 0.55 * size),
        }[CLASSES[kind]]
        labels[inside] = kind
        light[inside] = random.uniform(0.6, 1.0)
    slope = sum(random.uniform(-0.3, 0.3) * axis / side for axis in places)
    noise = random.normal(0, 0.1, labels.shape)
    return (light + slope + noise)[..., np.newaxis].astype("float32"), labels


def dataset(seed: int, count: int, side: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    pictures, labels = zip(*(draw(random, side, dimensions) for _ in range(count)), strict=True)
    return np.stack(pictures), np.stack(labels)


# --- the network ------------------------------------------------------------------------------------------------------


def unet(dimensions: int, memory: str, channels: int = 16, levels: int = 4, units: int = 2) -> keras.Model:
    """From pictures of any size that 2^(levels - 1) divides to the logits of each pixel.

    Args:
        memory: `store` keeps all activations, `recompute` computes each part again from its input, `reverse` each block
            from its output, and changes of resolution from their inputs.
    """
    layers = keras.layers
    conv, conv_transpose = getattr(layers, f"Conv{dimensions}D"), getattr(layers, f"Conv{dimensions}DTranspose")

    def normalised(*after: keras.layers.Layer) -> keras.Sequential:
        return keras.Sequential([layers.GroupNormalization(4), layers.ReLU(), *after])

    def blocks(x: keras.KerasTensor) -> keras.KerasTensor:
        half = x.shape[-1] // 2
        parts = [normalised(conv(half, 3, padding="same")) for _ in range(2 * units)]
        if memory == "recompute":
            parts = [recompute(part) for part in parts]
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        return ReversibleSequence(pairs, memory="reverse" if memory == "reverse" else "store")(x)

    def change(layer: keras.layers.Layer) -> keras.layers.Layer:
        return normalised(layer) if memory == "store" else recompute(normalised(layer))

    inputs = keras.Input((None,) * dimensions + (1,))
    x = conv(channels, 3, padding="same")(inputs)
    skips = []
    for level in range(1, levels):
        skips.append(blocks(x))
        x = change(conv(channels * 2**level, 2, strides=2))(skips[-1])
    x = blocks(x)
    for skip in reversed(skips):
        x = change(conv_transpose(skip.shape[-1], 2, strides=2))(x)
        x = blocks(layers.Add()([x, skip]))
    return keras.Model(inputs, normalised(conv(len(CLASSES), 1, dtype="float32"))(x), name="unet")


def dice_and_cross_entropy(labels: keras.KerasTensor, logits: keras.KerasTensor) -> keras.KerasTensor:
    """One loss for each example, [N]. The Dice coefficient is the mean over the classes."""
    space = list(range(1, len(logits.shape) - 1))
    truth, found = keras.ops.one_hot(labels, len(CLASSES), dtype="float32"), keras.ops.softmax(logits)
    shared, both = keras.ops.sum(truth * found, space), keras.ops.sum(truth + found, space)
    dice = keras.ops.mean((2 * shared + 1) / (both + 1), axis=-1)
    entropy = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return keras.ops.mean(entropy, axis=space) + 1 - dice


# --- prediction of larger pictures, and their measure -----------------------------------------------------------------


def predict(model: keras.Model, picture: np.ndarray, patch: int) -> np.ndarray:
    """The class of each pixel, from patches that overlap by half. Where they do, those nearer to the middle count more.

    Args:
        picture: float32 [side, ..., 1], of at least `patch` in each direction.
    """
    shape = picture.shape[:-1]
    bump = np.bartlett(patch + 2)[1:-1]
    weight = np.prod(np.meshgrid(*[bump] * len(shape), indexing="ij"), axis=0)[..., np.newaxis]
    total = np.zeros((*shape, len(CLASSES)))
    starts = ([*range(0, side - patch, patch // 2), side - patch] for side in shape)
    for corner in product(*starts):
        window = tuple(slice(start, start + patch) for start in corner)
        logits = model.predict_on_batch(picture[window][np.newaxis])
        total[window] += weight * np.asarray(keras.ops.softmax(logits))[0]
    return total.argmax(axis=-1)


def iou(truth: np.ndarray, found: np.ndarray) -> list[float]:
    """The intersection over the union, of each class. NaN stands for a class that is neither there nor found."""
    pairs = [(truth == number, found == number) for number in range(len(CLASSES))]
    return [float(np.sum(a & b) / np.sum(a | b)) if np.any(a | b) else np.nan for a, b in pairs]


def draw_masks(file: str, pictures: np.ndarray, truth: np.ndarray, found: np.ndarray) -> None:
    """A row for each picture. Of a volume the slice in the middle is drawn."""
    figure, axes = pyplot.subplots(len(pictures), 3, figsize=(9, 3 * len(pictures)), squeeze=False)
    for row, images in zip(axes, zip(pictures[..., 0], truth, found, strict=True), strict=True):
        for axis, image, title in zip(row, images, ("picture", "truth", "found"), strict=True):
            flat = image if image.ndim == 2 else image[:, :, image.shape[2] // 2]
            colors = {"cmap": "gray"} if title == "picture" else {"cmap": "tab10", "vmin": 0, "vmax": 9}
            axis.imshow(flat, interpolation="nearest", **colors)
            axis.set_title(title)
            axis.axis("off")
    figure.tight_layout()
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dimensions", type=int, choices=[2, 3], default=2)
    parser.add_argument("--memory", choices=["store", "recompute", "reverse"], default="reverse")
    options = parser.parse_args()
    size, dimensions = SIZES[options.dimensions], options.dimensions
    keras.utils.set_random_seed(1)

    updates = size["epochs"] * size["examples"] // size["batch"]
    rate = keras.optimizers.schedules.CosineDecay(0.0, updates, warmup_target=0.004, warmup_steps=updates // 10)
    model = unet(dimensions, options.memory)
    model.compile(keras.optimizers.Adam(rate), dice_and_cross_entropy)
    accumulate(model, steps=4, loss="mean")  # one update from a batch, in the memory of a fourth
    patches, labels = dataset(1, size["examples"], size["patch"], dimensions)
    model.fit(patches, labels, batch_size=size["batch"], epochs=size["epochs"], verbose=2)

    pictures, truth = dataset(2, 3, size["picture"], dimensions)  # larger ones that it has not seen
    found = np.stack([predict(model, picture, size["patch"]) for picture in pictures])
    shares = iou(truth, found)
    for name, share in zip(CLASSES, shares, strict=True):
        print(f"IoU of {name}: {share:.2f}")
    print(f"mean IoU: {np.nanmean(shares):.2f}")
    draw_masks("masks.png", pictures, truth, found)


if __name__ == "__main__":
    main()
