"""The input pipeline beside tensorflow-datasets with plain tf.data, and beside the step that it feeds (three minutes).

    .venv/bin/python benchmarks/input.py
    .venv/bin/python benchmarks/input.py --rounds 15 --images 5000

Data are made in a temporary folder: JPEG files of ImageNet's sizes (500 x 375 and the like, about 100 kB), as class
folders and as a prepared data set, and CIFAR's 32 x 32 PNG. Plain is what the guides of tf.data and tensorflow-datasets
advise: shuffle, map with AUTOTUNE over one image at a time, batch, prefetch; small data cached decoded, large ones
decoded only inside their window. Both sides decode with the same defaults and make the same random changes.

Each side is a process of its own that works only in its turn; ratios are formed within rounds. Processor time counts
all threads of a side, so it is comparable on a busy machine too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from command_line import result

SECONDS, SKIPPED_SECONDS = 3.0, 1.0  # of a turn; first goes what was prefetched while others had theirs
TOLD_APART, HELD_OUT = 10, 40  # classes, test images
THUMBNAILS = 10_000
SHAPES = ((375, 500), (500, 375), (333, 500))
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
STEP = ["model=revnet38", "batch_size=128"]


@dataclass(frozen=True)
class Case:
    """Overrides of ours, in which {} is the folder of all data; how plain loads and changes the same."""

    overrides: str
    load: str
    change: str
    batch: int


INCEPTION = f"data.augment=inception data.image_size=224 data.mean={MEAN} data.std={STD}".replace(", ", ",")
CASES = {
    "folder of JPEG files, 224 px": Case(f"data=folder data.path={{}}/folder {INCEPTION}", "folder", "photo", 64),
    "tfds, JPEG, 224 px": Case(f"data=tfds data.name=photos data.dir={{}} {INCEPTION}", "photos", "photo", 64),
    "tfds, 32 px": Case("data=cifar10 data.name=thumbnails data.dir={}", "thumbnails", "thumbnail", 128),
}


# --- data -----------------------------------------------------------------------------------------------------------


def picture(number: int, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: colours over all scales, the finer the weaker, as in photographs."""
    import tensorflow as tf

    generator = np.random.default_rng(number)
    image = np.full([height, width, 3], 128, np.float32)
    cells = 3
    while cells < min(height, width):
        coarse = 60 / cells**0.2 * generator.standard_normal([cells, cells, 3], np.float32)
        image += tf.image.resize(coarse, [height, width]).numpy()
        cells *= 2
    return image.clip(0, 255).astype(np.uint8)


def write_folder(root: Path, images: int) -> None:
    """root/train and root/test, each with a folder of JPEG files for each class."""
    import tensorflow as tf

    for number in range(images + HELD_OUT):
        folder = root / ("train" if number < images else "test") / f"class{number % TOLD_APART}"
        folder.mkdir(parents=True, exist_ok=True)
        encoded = tf.io.encode_jpeg(picture(number, *SHAPES[number % len(SHAPES)]), quality=95)
        (folder / f"{number:06}.jpg").write_bytes(encoded.numpy())


def prepare_tfds(root: Path) -> None:
    """Data sets of tensorflow-datasets in root: the files of root/folder, and thumbnails."""
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()

    def prepare(title: str, image: Any, examples: Callable[[str], Iterator[tuple[int, Any]]]) -> None:
        class Builder(tfds.core.GeneratorBasedBuilder):
            name = title
            VERSION = tfds.core.Version("1.0.0")

            def _info(self) -> tfds.core.DatasetInfo:
                features = {"image": image, "label": tfds.features.ClassLabel(num_classes=TOLD_APART)}
                features = tfds.features.FeaturesDict(features)
                return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("image", "label"))

            def _split_generators(self, _: object) -> dict[str, Any]:
                return {split: self._generate_examples(split) for split in ("train", "test")}

            def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
                for number, stored in examples(split):
                    yield number, {"image": stored, "label": number % TOLD_APART}

        Builder(data_dir=root).download_and_prepare()

    def photos(split: str) -> Iterator[tuple[int, Path]]:
        return ((int(file.stem), file) for file in sorted((root / "folder" / split).rglob("*.jpg")))

    def thumbnails(split: str) -> Iterator[tuple[int, np.ndarray]]:
        numbers = {"train": range(THUMBNAILS), "test": range(THUMBNAILS, THUMBNAILS + HELD_OUT)}
        return ((number, picture(number, 32, 32)) for number in numbers[split])

    prepare("photos", tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"), photos)
    prepare("thumbnails", tfds.features.Image(shape=(32, 32, 3)), thumbnails)


# --- the two sides --------------------------------------------------------------------------------------------------


def ours(case: Case, root: Path) -> Any:
    from composed import compose

    from accumtrain.data.open_data import open_data
    from accumtrain.data.pipeline import train_batches

    config = compose(*case.overrides.format(root).split(), f"batch_size={case.batch}")
    return train_batches(open_data(config.data, seed=0), batch=case.batch, first=0, seed=0)


def plain(case: Case, root: Path) -> Any:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    tf.get_logger().setLevel("ERROR")
    if case.load == "folder":
        builder = tfds.folder_dataset.ImageFolder(str(root / "folder"))
    else:
        builder = tfds.builder_from_directory(root / case.load / "1.0.0")
    undecoded = {"image": tfds.decode.SkipDecoding()} if case.change == "photo" else None
    examples = builder.as_dataset(split="train", as_supervised=True, shuffle_files=True, decoders=undecoded)
    if case.change == "thumbnail":
        examples = examples.cache()
    examples = examples.shuffle(1000 if case.change == "photo" else THUMBNAILS).repeat()
    change = {"photo": change_photo, "thumbnail": change_thumbnail}[case.change]
    return examples.map(change, tf.data.AUTOTUNE).batch(case.batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def change_photo(encoded: Any, label: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(encoded),
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        min_object_covered=0.05,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.05, 1.0),
    )
    image = tf.image.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
    image = tf.image.random_flip_left_right(tf.image.resize(image, [224, 224]) / 255)
    image = tf.image.random_brightness(image, 32 / 255)
    image = tf.image.random_saturation(image, 0.5, 1.5)
    image = tf.image.random_hue(image, 0.2)
    image = tf.clip_by_value(tf.image.random_contrast(image, 0.5, 1.5), 0, 1)
    return (image - MEAN) / STD, label


def change_thumbnail(image: Any, label: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    image = (tf.cast(image, tf.float32) / 255 - MEAN) / STD
    image = tf.image.random_crop(tf.image.resize_with_crop_or_pad(image, 40, 40), [32, 32, 3])
    return tf.image.random_flip_left_right(image), label


# --- turns ----------------------------------------------------------------------------------------------------------


def work(side: Callable[[Case, Path], Any], case: Case, root: Path, pipe: Connection) -> None:
    """For every message, images per second and processor milliseconds per image over a turn."""
    batches = iter(side(case, root))
    while pipe.recv():
        taken_in(batches, SKIPPED_SECONDS)
        used = time.process_time()
        taken, seconds = taken_in(batches, SECONDS)
        images = taken * case.batch
        pipe.send((images / seconds, 1e3 * (time.process_time() - used) / images))


def taken_in(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    """Batches taken for at least so many seconds, and the seconds."""
    started, taken = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < seconds:
        next(batches)
        taken += 1
    return taken, passed


def compare(case: Case, root: Path, rounds: int) -> np.ndarray:
    """[rounds, side, 2] of what `work` answers; ours is side 0, plain side 1."""
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for side in (ours, plain):
        here, there = context.Pipe()
        pipes.append(here)
        workers.append(context.Process(target=work, args=(side, case, root, there), daemon=True))
        workers[-1].start()
        there.close()

    def turn(pipe: Connection) -> tuple[float, float]:
        pipe.send(True)
        return pipe.recv()

    found = np.array([[turn(pipe) for pipe in pipes] for _ in range(rounds + 1)])[1:]  # the first is warm-up
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(False)
        worker.join()
    return found


def main(images: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_folder(root / "folder", images)
        prepare_tfds(root)
        files = [file.stat().st_size for file in (root / "folder").rglob("*.jpg")]
        print(f"{len(files)} JPEG files of {statistics.mean(files) / 1e3:.0f} kB; medians of {rounds} rounds")
        for name, case in CASES.items():
            found = compare(case, root, rounds)
            (speed, cpu), (plain_speed, plain_cpu) = np.median(found, axis=0)
            faster, lighter = np.median(found[:, 0] / found[:, 1], axis=0)
            print(
                f"  {name:<30} images/s: ours {speed:>6.0f}  plain {plain_speed:>6.0f}  ratio {faster:.2f};"
                f"  CPU ms per image: {cpu:.3f}  {plain_cpu:.3f}  {lighter:.2f}",
                flush=True,
            )
        small = CASES["tfds, 32 px"].overrides.format(root).split()
        bench = result(root / "runs", "bench.json", "job=bench", *STEP, *small)
        used = bench["images_per_second"]["median"]
        print(
            f"{' '.join(STEP)} on the last: {used:.0f} images/s, {bench['input_share']:.1%} of it for the input, which "
            f"alone gives {bench['input_images_per_second']:.0f}: {bench['input_images_per_second'] / used:.1f} times"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=2000, help="JPEG files to train on")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    main(options.images, options.rounds)
