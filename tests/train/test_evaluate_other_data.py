"""job=evaluate on the run's own data at another place, and on new data with labels."""

import csv
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from accumtrain.data.config import DigitsConfig, TfrecordConfig
from accumtrain.data.inputs.pixels import make_pixels
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.sources.labelled import open_labelled
from accumtrain.data.text.vocabulary import number_ids
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.train.trained import load
from tests.data.conftest import PLAIN, example, picture, png, write_records
from tests.train.conftest import assert_error, json_of

CLASSES = ("cat", "dog", "owl")
RUN = (
    *("model=lenet5", "optim=sgd", "optim.lr=0.1", "batch_size=8", "accum.steps=2", "train.steps=12", "eval.every=12"),
    *("data=folder", "data.val_fraction=0", "data.mean=[0.3]", "run.name=one"),
)
EVALUATE = ("job=evaluate", "run.name=one")


def pixels(label, number, size=16):
    """A bar for the class, in noise that makes it hard to see."""
    drawn = np.random.default_rng(1000 * label + number).integers(0, 200, [size, size, 3])
    drawn[4 * label : 4 * label + 4] += 40
    return np.clip(drawn, 0, 255).astype(np.uint8)


def write(folder, classes=CLASSES, numbers=range(10), size=16):
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in numbers:
            Image.fromarray(pixels(CLASSES.index(name), number, size)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compose):
    """A folder with photos/, and the run in runs/one that was trained on it."""
    folder = tmp_path_factory.mktemp("other_data")
    write(folder / "photos")
    run(compose(*RUN, f"data.path={folder / 'photos'}", f"run.dir={folder / 'runs'}"))
    return folder


@pytest.fixture
def here(trained, tmp_path, command):
    shutil.copytree(trained / "runs", tmp_path / "runs")
    shutil.copytree(trained / "photos", tmp_path / "moved")
    return tmp_path


def result_of(here, data="new"):
    """The result of evaluating other data than the run's, which is in a file of its own."""
    assert not (here / "runs/one/evaluation.json").exists(), "that is of the run's own data"
    return json_of(here / "runs/one", f"evaluation-{data}")


@pytest.mark.parametrize("keys", [("data.path=moved",), ("data=folder", "data.path=moved")])
def test_data_that_moved_is_the_run_s_own(keys, here, command):
    answer = command(*EVALUATE, *keys)
    assert answer.code == 0, answer.err
    result = result_of(here, "moved")
    assert (result["own_data"], [each["examples"] for each in result["classes"]]) == (True, [2, 2, 2])
    assert result["test"] == {name: json_of(here / "runs/one")["test"][name] for name in ("loss", "accuracy")}
    assert "not what the run was trained on" not in answer.out
    assert result["mistakes"], "else the next line checks nothing"
    assert all(each["file"].startswith(f"moved/{each['label']}/") for each in result["mistakes"])


def test_training_goes_on_with_data_that_moved(here, command):
    answer = command(*RUN, "data.path=moved", "train.steps=13")
    assert answer.code == 0, answer.err
    assert "continuing after update 12 of 13" in answer.out


def by_prediction(here, command, folder):
    """The accuracy of each class, from the answers of job=predict."""
    assert command("job=predict", "run.name=one", f"predict.input={folder}").code == 0
    rows = [*csv.reader((here / "runs/one/predictions.csv").read_text().splitlines())][1:]
    right = {}
    for file, answered, *_ in rows:
        right.setdefault(file.split("/")[-2], []).append(answered == file.split("/")[-2])
    return {name: (len(each), float(np.mean(each))) for name, each in right.items()}


def measured(here, data="new"):
    return {each["name"]: (each["examples"], each["accuracy"]) for each in result_of(here, data)["classes"]}


@pytest.mark.slow
def test_all_of_new_data_is_measured(here, command):
    """With a class that has none, one that has a single image, and images of another size."""
    write(here / "new", ("owl",), range(50, 57), size=21)
    write(here / "new", ("cat",), range(50, 51))
    answer = command(*EVALUATE, "data.path=new")
    assert answer.code == 0, answer.err
    assert "new is not what the run was trained on: all its 8 images are measured" in answer.out
    assert result_of(here)["own_data"] is False
    assert result_of(here)["epoch"] == json_of(here / "runs/one")["epoch"]
    assert measured(here) == {**by_prediction(here, command, "new"), "dog": (0, None)}
    assert [line.split()[:3] for line in answer.out.splitlines() if line.startswith("dog")] == [["dog", "0", "-"]]


def test_what_is_left_out_of_new_data(here, command):
    write(here / "new", ("owl",), range(50, 54))
    bad = next((here / "new/owl").iterdir())
    bad.write_bytes(bad.read_bytes()[:-30])
    assert command(*EVALUATE, "data.path=new", "data.on_error=skip").code == 0
    assert measured(here)["owl"][0] == 3
    (left_out,) = result_of(here)["skipped"]
    assert (left_out["split"], left_out["name"]) == ("test", f"new/owl/{bad.name}")


@pytest.mark.slow
def test_the_results_of_the_run_itself_stay(here, command):
    """A second set of data has files of its own, and both say on the screen what they hold."""
    own = command(*EVALUATE, f"data.path={own_path(here)}")
    assert own.code == 0, own.err
    assert "on the test images of photos; in runs/one/evaluation.json" in own.out
    names = ("evaluation.json", "confusion.png", "mistakes.png")
    before = {name: (here / "runs/one" / name).read_bytes() for name in names}
    write(here / "new", ("owl",), range(50, 57), size=21)
    other = command(*EVALUATE, "data.path=new")
    assert "update 12, on all images of new; in runs/one/evaluation-new.json" in other.out
    assert {name: (here / "runs/one" / name).read_bytes() for name in names} == before
    written = json_of(here / "runs/one", "evaluation-new")
    assert written["pictures"] == [f"runs/one/{name}-new.png" for name in ("confusion", "mistakes")]
    assert all((here / picture).exists() for picture in written["pictures"])


def own_path(here):
    """The data.path that the run was trained with."""
    return yaml.safe_load((here / "runs/one/config.yaml").read_text())["data"]["path"]


@pytest.mark.slow
def test_a_sweep_over_data_has_a_file_for_each(here, command):
    for name in ("new", "newer"):
        write(here / name, ("owl",), range(50, 53))
    answer = command("-m", *EVALUATE, "data.path=new,newer")
    assert answer.code == 0, answer.err
    assert "2 runs, best first" in answer.out
    assert result_of(here)["test"] == result_of(here, "newer")["test"]


@pytest.mark.slow
def test_its_splits_are_none_here(here, command):
    write(here / "new/train", CLASSES, range(60, 64))
    write(here / "new/test", CLASSES[:2], range(70, 73))
    assert command(*EVALUATE, "data=folder", "data.path=new").code == 0
    assert measured(here) == by_prediction(here, command, "new")
    assert measured(here).keys() == {"cat", "dog", "owl"}


def test_a_class_that_the_run_does_not_know(here, command):
    (write(here / "new", CLASSES) / "owl").rename(here / "new/gnu")
    answer = command(*EVALUATE, "data.path=new")
    assert_error(answer, DataError, "has the class gnu, on which the run was not trained (it knows cat, dog, owl)")


@pytest.mark.slow
def test_data_that_changed_is_new(here, command):
    (here / "moved/cat/0.png").unlink()
    assert command(*EVALUATE, "data.path=moved").code == 0
    assert {name: count for name, (count, _) in measured(here, "moved").items()} == {"cat": 9, "dog": 10, "owl": 10}
    (here / "moved/cat/0.png").write_bytes((here / "moved/cat/1.png").read_bytes() + b"x")  # the old name, a new size
    assert command(*EVALUATE, "data.path=moved").code == 0
    assert result_of(here, "moved")["own_data"] is False


@pytest.mark.slow
def test_data_of_another_kind(here, command):
    labels = np.repeat(np.arange(3), 4)
    images = np.stack([pixels(label, 80 + number) for number, label in enumerate(labels)])
    np.savez(here / "new.npz", images=images, labels=labels)
    write(here / "new", numbers=())
    for number, label in enumerate(labels):
        Image.fromarray(images[number]).save(here / "new" / CLASSES[label] / f"{number}.png")
    answer = command(*EVALUATE, "data=npz", "data.path=new.npz")
    assert answer.code == 0, answer.err
    assert "its labels are numbers, in the order of the run's classes: cat, dog, owl" in answer.out
    assert measured(here, "new.npz") == by_prediction(here, command, "new")
    np.savez(here / "grey.npz", images=images[..., 0], labels=labels)
    answer = command(*EVALUATE, "data=npz", "data.path=grey.npz")
    assert_error(answer, DataError, "its images have 1 channel, the run was trained on 3")


@pytest.mark.parametrize(
    ("key", "value"),
    [("mean", "[0.5]"), ("image_size", 8), ("augment", "inception"), ("test_fraction", 0.5), ("val_fraction", 0.5)],
)
def test_images_are_prepared_as_in_training(key, value, here, command):
    answer = command(*EVALUATE, "data.path=moved", f"data.{key}={value}")
    assert_error(answer, ConfigError, f"leave data.{key} out to use the values of the run")


@pytest.mark.slow
def test_the_remedy_for_damaged_names_works(here, command):
    names = here / "runs/one/inputs.json"
    names.write_text("{}")
    answer = command(*EVALUATE, "data.path=moved")
    assert_error(answer, CheckpointError, "move it away, and the job that wrote it makes a new one")
    names.unlink()
    assert command(*RUN, "data.path=moved").code == 0
    assert command(*EVALUATE, "data.path=moved").code == 0


def write_examples(name, numbers, image):
    features = [{"image/encoded": image(number), "image/class/label": number % 3} for number in numbers]
    write_records(name, *map(example, features))


def trained_on(shape):
    return TrainedOn(make_pixels(DigitsConfig(**PLAIN), shape, 255), "classes", ["0", "1", "2"])


def numbers_of(batch):
    """The numbers of pictures."""
    return np.rint(batch["inputs"][:, 0, 0, 0] * 255).astype(int).tolist()


def test_records_that_the_run_has_had_are_left_out(tmp_path, monkeypatch):
    """Only data.path says where new records are; data.test_path is that of the run."""
    monkeypatch.chdir(tmp_path)
    for name, numbers in {"train": range(6), "test": range(10, 13), "new": range(20, 25)}.items():
        write_examples(name, numbers, png)

    def tfrecord_config(**places):
        return TfrecordConfig(**PLAIN, **{"path": "train", "test_path": "test", **places}, num_classes=3)

    trained = open_data(tfrecord_config(), 0)
    images = trained_on((6, 6, 3))
    data = open_labelled(tfrecord_config(path="new"), images, trained.fingerprint, 0)
    assert data.notes[0] == "left out, as the run has had its files: test"
    (batch,) = make_eval_batches(data, batch=5)
    assert numbers_of(batch) == [*range(20, 25)]
    both = open_labelled(tfrecord_config(path="new", test_path="train"), images, {}, 0)
    (batch,) = make_eval_batches(both, batch=11)
    assert numbers_of(batch) == [*range(20, 25), *range(6)]
    assert batch["targets"].numpy().tolist() == [number % 3 for number in (*range(20, 25), *range(6))]


def test_pixels_of_several_files_of_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, numbers in {"a": range(3), "b": range(10, 12)}.items():
        write_examples(name, numbers, lambda number: picture(number).tobytes())
    shape = list(picture(0).shape)
    config = TfrecordConfig(**PLAIN, path="a", test_path="b", num_classes=3, raw_shape=shape)
    data = open_labelled(config, trained_on(tuple(shape)), {}, 0)
    (batch,) = make_eval_batches(data, batch=5)
    assert numbers_of(batch) == [0, 1, 2, 10, 11]


def test_tokens_beyond_the_vocabulary_are_told_alike_by_evaluate_and_predict(tmp_path, compose, monkeypatch):
    """The keys of the run say how many ids there were, not that there may be more."""
    np.savez(tmp_path / "new.npz", tokens=np.full([4, 8], 149), labels=[0, 1, 0, 1])
    config = compose("job=evaluate", "data=npz", f"data.path={tmp_path / 'new.npz'}", "data.vocabulary=100")
    inputs = Tokens((8,), number_ids(100))
    monkeypatch.setattr(load, "find_state", lambda folder: (None, {"data": {}}))
    monkeypatch.setattr(load, "read_trained_on", lambda folder, data: TrainedOn(inputs, "classes", ["0", "1"]))
    with pytest.raises(DataError) as evaluated:
        load.open_measured(config)
    with pytest.raises(DataError) as predicted:
        inputs.open_named([config.data.path], config.data, "predict.input")
    assert str(evaluated.value) == str(predicted.value)
    assert "holds 149 at row 0, column 0: the ids of the vocabulary are 0..100; correct it, or" in str(evaluated.value)
