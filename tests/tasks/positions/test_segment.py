"""Runs of task=segment: trained on crops, killed and continued, evaluated and predicted in tiles."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import accumtrain
from accumtrain.data.config import FolderConfig
from accumtrain.data.inputs.scenes import make_scenes
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.dispatch import run
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import EACH
from accumtrain.models.build import build_model
from accumtrain.models.config import UNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.tasks.objective import open_stored
from accumtrain.tasks.positions.segment import make_palette, write_mask
from tests.train.conftest import assert_same_tensors, records_of, tensors_of

SIZES = [(40, 56), (64, 33), (24, 24), (50, 50), (70, 41), (33, 64), (48, 48), (28, 80)]
MODEL = ("model=revunet_small", "model.filters=[8,16]", "model.units=[1,1]", "optim=adam", "optim.lr=0.01")
RUN = ("task=segment", "data=folder", "data.path=scenes", "data.crop=32", "data.augment=dihedral", *MODEL)
SMALL = (
    *RUN,
    "batch_size=4",
    "accum.steps=2",
    "log.every=1",
    "eval.every=4",
    "run.name=one",
    "train.steps=8",
    "loss=dice_cross_entropy",
)


def write_scenes(folder):
    """Squares that are brighter than their ground, in noise, and a border of pixels without a class."""
    random = np.random.default_rng(3)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for number, (height, width) in enumerate(SIZES):
        mask = np.zeros([height, width], np.uint8)
        for _ in range(4):
            top, left = random.integers(0, height - 10), random.integers(0, width - 10)
            mask[top : top + 10, left : left + 10] = 1
        image = np.where(mask, 180, 70) + random.normal(0, 9, mask.shape)
        mask[:, :2] = 255
        pixels = np.repeat(np.clip(image, 0, 255).astype(np.uint8)[..., None], 3, 2)
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number}.png")


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory):
    """The folder of the scenes and of a run that was trained on them."""
    folder = tmp_path_factory.mktemp("trained")
    write_scenes(folder / "scenes")
    keys = (f"data.path={folder / 'scenes'}", f"run.dir={folder / 'runs'}", "data.ignore=255")
    run(compose(*SMALL, *keys))
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """The folder of a test, which has a copy of the scenes and the run."""
    for part in ("scenes", "runs"):
        shutil.copytree(trained / part, tmp_path / part)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(file):
    return json.loads(file.read_text())


def confusions(masks, found):
    counts = np.zeros([2, 2], np.int64)
    for mask, one in zip(masks, found, strict=True):
        known = mask != 255
        np.add.at(counts, (mask[known], one[known]), 1)
    return counts


def test_the_masks_of_predictions_have_the_scores_of_the_evaluation(trained, here, compose):
    """By their pixels, in whole images, whatever the tiles."""
    run(compose(*SMALL, "data.ignore=255", "job=evaluate", f"data.path={trained / 'scenes'}"))
    measured = read(here / "runs" / "one" / "evaluation.json")
    run(compose(*SMALL, "data.ignore=255", "job=predict", "predict.input=scenes/images", "predict.output=answers"))
    predicted = read(here / "runs" / "one" / "predict.json")
    found = {file.stem: np.asarray(Image.open(file)) for file in (here / "answers" / "masks").glob("*.png")}
    masks = {file.stem: np.asarray(Image.open(file)) for file in (here / "scenes" / "masks").glob("*.png")}
    assert {name: each.shape for name, each in found.items()} == {name: each.shape for name, each in masks.items()}
    stored = open_stored(compose(*SMALL, "data.ignore=255"))
    tested = [file.stem for file in stored.test.undivided.files]
    counts = confusions([masks[name] for name in tested], [found[name] for name in tested])
    assert measured["confusions"] == counts.tolist()
    ious = [counts[at, at] / (counts[at].sum() + counts[:, at].sum() - counts[at, at]) for at in (0, 1)]
    assert measured["test"]["mean_iou"] == pytest.approx(np.mean(ious), abs=1e-12)
    lines = [json.loads(line) for line in (here / "answers" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == predicted["examples"] == len(SIZES)
    for line in lines:
        pixels = found[line["file"].rpartition("/")[2].removesuffix(".png")]
        assert line["pixels"] == {"0": int((pixels == 0).sum()), "1": int((pixels == 1).sum())}


def test_a_killed_run_goes_on_with_the_same_bits(here, compose, train_until_killed):
    keys = ("data.ignore=255", "checkpoint.every=2")
    config = compose(*SMALL, *keys, "run.name=killed")
    train_until_killed(config, 5)
    run(config)
    last = "checkpoints/step-8"
    assert_same_tensors(tensors_of(here / "runs" / "killed" / last), tensors_of(here / "runs" / "one" / last))
    for mine, other in zip(records_of(here / "runs" / "killed"), records_of(here / "runs" / "one"), strict=True):
        assert mine["loss"] == other["loss"]


def test_a_loaded_run_gives_the_probabilities_of_pixels(here):
    loaded = accumtrain.load_run("one")
    files = [f"scenes/images/{number}.png" for number in (0, 2)]
    of_files = loaded.predict(files)
    for values, (height, width) in zip(of_files.answers, (SIZES[0], SIZES[2]), strict=True):
        assert values.shape == (height, width, 2)
        np.testing.assert_allclose(values.sum(-1), 1, atol=1e-5)
    array = loaded.predict(np.asarray(Image.open(files[0]))[None])
    np.testing.assert_array_equal(array.answers[0], of_files.answers[0])
    assert array.records[0]["pixels"] == of_files.records[0]["pixels"]


def test_other_masks_are_evaluated_as_those_of_the_run(here, compose):
    shutil.copytree("scenes", "others")
    for part in ("images", "masks"):
        (here / "others" / part / "0.png").unlink()
    run(compose(*SMALL, "data.ignore=255", "job=evaluate", "data.path=others"))
    result = read(here / "runs" / "one" / "evaluation-others.json")
    assert sum(map(sum, result["confusions"])) == sum(height * (width - 2) for height, width in SIZES[1:])


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (("data=digits",), ConfigError, "data=digits has no masks for it"),
        (
            ("loss=cross_entropy",),
            ConfigError,
            "loss=cross_entropy: takes classes, and the targets of task=segment are",
        ),
        (("model=resnet20",), ConfigError, "tells"),
        (("data.mixup=0.2",), ConfigError, "data.mixup=0.2: does not go with task=segment"),
        (("log.noise=true",), ConfigError, "is of the whole batch"),
        (("data.ignore=[]",), DataError, "set data.ignore=255"),
        (("data.crop=null",), DataError, "images differ in size, .*data.crop=256"),
    ],
)
def test_what_can_not_be_is_refused_in_words(here, compose, keys, error, message):
    own = [key for key in SMALL if key.partition("=")[0] not in {each.partition("=")[0] for each in keys}]
    if "data=digits" in keys:
        own = [key for key in own if not key.startswith("data.")]
    if any(key.startswith("model=") for key in keys):
        own = [key for key in own if not key.startswith("model.")]
    ignore = () if keys[0].startswith(("data=", "data.ignore")) else ("data.ignore=255",)
    with pytest.raises(error, match=message):
        run(compose(*own, *ignore, *keys, "run.name=refused"))


def test_masks_keep_their_numbers_and_look_different(tmp_path):
    mask = np.arange(12).reshape(3, 4)
    write_mask(mask, tmp_path / "out" / "mask.png")
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "out" / "mask.png")), mask)
    write_mask(mask + 300, tmp_path / "large.png")
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "large.png")), mask + 300)
    assert len({tuple(colour) for colour in make_palette().tolist()}) == 256
    assert make_palette()[:3].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0]]


def test_tiles_have_the_answers_of_the_whole_image():
    """Where the network sees no farther than the margin: two levels see 14 pixels. Batch norm sees no other pixels."""
    model = build_model(UNetConfig(filters=[4, 8], norm="batch"), ModelSpec((64, 64, 3), 3, tells=EACH))
    for variable in model.variables:
        variable.assign(variable + tf.random.stateless_uniform(variable.shape, [1, len(variable.shape)], 0, 0.3))
    inputs = make_scenes(FolderConfig(path="", crop=64, margin=16), (64, 64, 3), 255)
    image = np.random.default_rng(2).integers(0, 256, [1, 160, 96, 3], np.uint8)
    data = inputs.open_array(image, FolderConfig(path=""))
    batches = make_eval_batches(data, batch=1)
    tiles = [(batch["targets"].numpy(), model(batch["inputs"]).numpy()) for batch in batches]
    assert len(tiles) == 8
    ((_, [found]),) = inputs.join(data.test, tiles)
    (whole,) = model(inputs.serve(tf.constant(image))).numpy()
    assert np.abs(found - whole).max() <= 1e-5 * np.abs(whole).max()
