"""Every choice of every group composes, and every mistake gets one message that names its remedy."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
from accumtrain.config.keys import CONF_DIR
from accumtrain.config.read import from_mapping, list_known_keys, to_mapping
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.optim.config import SgdConfig
from tests.contract.examples import EXAMPLES

REQUIRED = {  # what a choice leaves to the user
    "model=keras": ["model.name=MobileNetV2"],
    "optim=keras": ["optim.name=Lion"],
    "schedule=step": ["schedule.boundaries=[10,20]"],
    "data=tfds": ["data.name=cifar10"],
    "data=folder": ["data.path=photos"],
    "data=tfrecord": ["data.path=a", "data.test_path=b", "data.num_classes=3"],
    "data=npz": ["data.path=mine.npz"],
    "data=table": ["data.path=labels.csv"],
    "data=texts": ["data.path=texts"],
    "data=cifar_binary": ["data.path=cifar-10-batches-bin"],
    "data=idx": ["data.path=MNIST_Data"],
    "model=pretrained": [f"model.path={EXAMPLES['model']['pretrained'].path}"],
    "model=kerashub": [f"model.preset={EXAMPLES['model']['kerashub'].preset}"],
}
NPZ = ["data=npz", "data.path=mine.npz"]  # which has targets of all forms
TEXTS = ["data=texts", "data.path=texts"]
BESIDE = {  # what else a choice goes with
    "task=multilabel": NPZ,
    "task=segment": NPZ,
    **{
        f"loss={name}": ["task=segment", *NPZ]
        for name in ("positions", "dice", "dice_cross_entropy", "focal", "tversky")
    },
    "loss=sigmoid_cross_entropy": ["task=multilabel", *NPZ],
    "task=regress": NPZ,
    "task=masked_tokens": TEXTS,
    "task=next_token": TEXTS,
    "loss=token_cross_entropy": ["task=masked_tokens", *TEXTS],
    **{f"loss={name}": ["task=regress", *NPZ] for name in ("squared_error", "absolute_error", "huber")},
}
CHOICES = sorted(f"{file.parent.name}={file.stem}" for file in CONF_DIR.glob("*/*.yaml"))


@pytest.mark.parametrize("choice", CHOICES)
def test_choice_composes_and_survives_a_round_trip(choice, compose):
    config = compose(choice, *REQUIRED.get(choice, []), *BESIDE.get(choice, []))
    assert isinstance(config, Config)
    saved = yaml.safe_load(yaml.safe_dump(to_mapping(config)))
    assert from_mapping(saved) == config


@pytest.mark.parametrize("choice", REQUIRED)
def test_choice_without_its_required_values_says_which(choice, compose):
    keys = [setting.partition("=")[0] for setting in REQUIRED[choice]]
    with pytest.raises(ConfigError, match=" no value; add ") as refused:
        compose(choice)
    assert all(f"{key}=" in str(refused.value) for key in keys)


@pytest.mark.parametrize("label", [name.partition("=")[2] for name in CHOICES if name.startswith("model=re")])
def test_residual_models_have_the_depth_of_their_name(label, compose):
    assert compose(f"model={label}").model.label == label


SHORT_NAMES = {"cifar10_vit", "fashion_vit", "text_lm", "text_mlm"}


@pytest.mark.parametrize("file", sorted(CONF_DIR.glob("experiment/*.yaml")), ids=lambda file: file.stem)
def test_experiment_names_its_model_and_its_command(file: Path, compose):
    config = compose(f"experiment={file.stem}")
    named = f"{config.data.label.removesuffix('2012')}_{config.model.label}"
    assert file.stem in SHORT_NAMES or file.stem.startswith(named)
    assert f"accumtrain experiment={file.stem}\n" in file.read_text()
    assert re.search(r"Published: .*\d %|Published: no", file.read_text())
    assert re.search(r"^# (Not run|Run) here", file.read_text(), re.MULTILINE)
    if config.schedule.kind == "step":
        assert config.train.steps == 10 * config.schedule.boundaries[0] // 5 or config.train.steps == 600_000


@pytest.mark.parametrize("file", sorted(CONF_DIR.glob("recipe/*.yaml")), ids=lambda file: file.stem)
def test_recipe_says_what_it_is_for_and_goes_with_an_experiment(file: Path, compose):
    assert re.match(r"# @package _global_\n# For .*\.", file.read_text())
    recipe = compose(f"recipe={file.stem}")
    both = compose(f"recipe={file.stem}", "experiment=cifar10_revnet38")
    assert recipe.loss == both.loss != compose().loss
    assert (both.data.name, both.batch_size) == ("cifar10", 100)
    assert both.data.randaugment == recipe.data.randaugment
    assert (recipe.schedule.kind, both.schedule.kind) == ("cosine", "step"), "as docs/recipes.md says"
    cosine = ("schedule=cosine", "~schedule.boundaries", "~schedule.factor")
    assert compose(f"recipe={file.stem}", "experiment=cifar10_revnet38", *cosine).schedule == recipe.schedule


def test_every_key_of_the_schema_has_a_value_in_conf():
    written = set()
    for file in CONF_DIR.rglob("*.yaml"):
        content = yaml.safe_load(file.read_text())
        is_global = file.parent == CONF_DIR or "@package _global_" in file.read_text()
        for group, value in content.items() if is_global else [(file.parent.name, content)]:
            written |= {group, *(f"{group}.{key}" for key in value)} if isinstance(value, dict) else {group}
    assert set(list_known_keys()) <= written


def test_paper_recipe_is_whole(compose):
    config = compose("experiment=imagenet_revnet104")
    assert (config.batch_size, config.train.steps, config.optim.lr) == (256, 600_000, 0.1)
    assert config.schedule.boundaries == [160_000, 320_000, 480_000]
    assert (config.data.name, config.data.test_split, config.data.image_size) == ("imagenet2012", "validation", 224)


@pytest.mark.parametrize("devices", [1, 8])
def test_the_parallel_example_of_mindspore_gives_each_device_6_micro_batches_of_32(devices, compose):
    more = [] if devices == 1 else ["device=mirrored", f"batch_size={192 * devices}"]
    config = compose("experiment=cifar10_resnet50", *more)
    assert micro_batch_size(config.batch_size, config.accum.count, devices) == 32
    assert (config.accum.count, config.accum.reduction, config.model.label) == (6, "sum", "resnet50")
    assert (config.optim.lr, config.optim.momentum, config.data.label) == (0.01, 0.9, "cifar10")


@pytest.mark.parametrize(
    ("epochs", "steps", "examples", "batch_size", "expected"),
    [
        (20, None, 1437, 64, 450),  # 449.06 updates: the last one begins a 21st epoch
        (0.1, None, 30, 1, 3),  # exactly 3: the binary 0.1 is a little more
        (1, 7, 1000, 10, 7),
        (0.001, None, 10, 10, 1),
    ],
)
def test_total_steps(epochs, steps, examples, batch_size, expected, compose):
    config = compose(f"train.epochs={epochs}", f"batch_size={batch_size}", "accum.steps=1")
    config.train.steps = steps
    assert total_steps(config, Epochs(config, examples)) == expected


def test_epochs_go_on_from_those_made_with_another_batch_size(compose):
    """90 updates of 64 leave 5736 of 8 x 1437 examples, which are 12 updates of 512."""
    small, large = (compose("train.epochs=8", f"batch_size={size}", "accum.steps=1") for size in (64, 512))
    before, after = Epochs(small, 1437), Epochs(large, 1437)
    after.restore(90, before.at(90))
    assert float(after.at(90)) == 90 * 64 / 1437
    assert total_steps(large, after) == 90 + 12
    assert after.at(102) == Fraction(90 * 64 + 12 * 512, 1437)
    again = Epochs(large, 1437)
    again.restore(95, after.at(95))
    assert total_steps(large, again) == 102, "however often it is stopped"


RAMP = "batch_ramp={0.25:128,0.5:256}"


@pytest.mark.parametrize(
    ("length", "total", "batches"),
    [
        # 5,120 examples: 20 updates of 64 are a quarter, 10 of 128 another one, 10 of 256 a half
        ("train.steps=40", 40, [(0, 64), (20, 128), (30, 256)]),
        # 2,874 examples: 12 x 64 = 768 are the first to reach 718.5, 6 x 128 more 1,437, and 6 x 256 the end
        ("train.epochs=2", 24, [(0, 64), (12, 128), (18, 256)]),
        # a single update of 64 is more than half of 72 examples
        ("train.epochs=0.05", 2, [(0, 64), (1, 256)]),
    ],
)
def test_a_ramp_is_of_shares_of_the_examples(length, total, batches, compose):
    config = compose("batch_size=64", RAMP, length)
    epochs = Epochs(config, 1437)
    assert total_steps(config, epochs) == total
    assert epochs.batches[: len(batches)] == batches
    sizes = [[batch for first, batch in batches if first <= update][-1] for update in range(total)]
    assert [epochs.batch_after(update) for update in range(total)] == sizes
    assert [epochs.at(update) for update in range(total + 1)] == [
        Fraction(sum(sizes[:update]), 1437) for update in range(total + 1)
    ]
    assert [epochs.update_of(epochs.at(update)) for update in range(total + 1)] == [*range(total + 1)]
    assert [epochs.examples(0, update) for update in range(total)] == [sum(sizes[:update]) for update in range(total)]
    for stopped in range(total):
        again = Epochs(config, 1437)
        again.restore(stopped, epochs.at(stopped))
        assert total_steps(config, again) == total
        assert again.batches[1:] == [stage for stage in epochs.batches if stage[0] > stopped]
        assert again.next_stage(stopped) == epochs.next_stage(stopped)
        assert [again.batch_after(update) for update in range(stopped, total)] == sizes[stopped:]


def test_a_share_is_the_decimal_that_a_program_gives(compose):
    epochs = Epochs(replace(compose("batch_size=10", "train.epochs=1"), batch_ramp={0.1: 20}), 1000)
    assert epochs.batches == [(0, 10), (10, 20)], "0.1 as a binary fraction is more than 100 examples"


def test_the_updates_of_a_longer_run_follow_on_those_made(compose):
    """After half of a run its length is doubled: of the shares of the new one, a quarter is made."""
    short, long = (compose("batch_size=64", RAMP, f"train.epochs={epochs}") for epochs in (2, 4))
    before, after = Epochs(short, 1437), Epochs(long, 1437)
    after.restore(18, before.at(18))
    assert after.at(18) * 1437 == 12 * 64 + 6 * 128
    assert after.batches == [(18, 128), (29, 256)], "2 of 4 epochs are 1,338 examples farther"


@pytest.mark.parametrize(("step", "counted", "shown"), [(45, 2.0, "2"), (46, 46 * 64 / 1437, "2.049")])
def test_an_update_that_completes_an_epoch_counts_as_its_end(compose, step, counted, shown):
    epochs = Epochs(compose("batch_size=64"), 1437)
    made = epochs.at(step)
    assert (epochs.counted(made), epochs.shown(made)) == (counted, shown)


def test_micro_batch_size():
    assert micro_batch_size(64, 4, 2) == 8
    with pytest.raises(ConfigError, match=r"batch_size=3 is not divisible by accum.steps=2 x 4 replicas; nearest: 8$"):
        micro_batch_size(3, 2, 4)


@pytest.mark.parametrize("batch_size", [1, 50, 97])
def test_a_batch_is_one_micro_batch_unless_asked_for(batch_size, compose):
    assert compose(f"batch_size={batch_size}").accum.count == 1


def test_experiments_beside_each_other_accumulate_alike(compose):
    """Their figures were measured so, whatever the default is."""
    assert {compose(f"experiment=digits_revnet38_{optim}").accum.count for optim in ("adam", "adafactor")} == {4}


MISTAKES = [
    ("batch_size=100 accum.steps=8", "batch_size=100 is not divisible by accum.steps=8 x 1 replica; nearest: 96, 104"),
    ("device=mirrored device.virtual=3 accum.steps=4", "accum.steps=4 x 3 replicas; nearest: 60, 72"),
    ("device=multiworker device.workers=[a:1,b:1] device.virtual=3 device.index=0", "x 6 replicas; nearest: 60, 66"),
    ("device=multiworker job=verify", "device=multiworker: job=verify runs in one process; train and evaluate do not"),
    ("device=multiworker run.on_nonfinite=rollback", "run.on_nonfinite=rollback: works in one process"),
    ("device.workers=[a:1]", "device.workers=[a:1]: only device=multiworker has workers"),
    ("accum.dtype=bfloat16", "accum.dtype=bfloat16: no such choice; did you mean float"),
    ("optim.clip_norm=1 optim.adaptive_clip=0.01", "optim.clip_norm=1.0 and optim.adaptive_clip=0.01: set one of them"),
    ("accum.reduction=max", "accum.reduction=max: no such choice; choose from mean, sum"),
    ("accum.reduction=sum accum=auto", "accum.reduction=sum: accum.steps decides what is learned, so it can't be auto"),
    ("log.noise=1", "log.noise=1: must be true or false"),
    ("loss_scale.initial=0.5", "loss_scale.initial=0.5: must be at least 1"),
    ("batch_size=0", "batch_size=0: must be at least 1"),
    ("batch_size=64.5", "batch_size=64.5: must be a whole number"),
    ("batch_size=1e30", "batch_size=1000000000000000019884624838656: must be a number of at most 64 bits"),
    ("batch_size=true", "batch_size=true: must be a whole number"),
    ("batch_size='64'", "batch_size=64: must be a whole number; write it without quotes"),
    ("batch_size=null", "batch_size=null: must be a whole number"),
    ("accum.steps=0", "accum.steps=0: must be at least 1"),
    ("accum.steps=1.5", "accum.steps=1.5: must be a number of micro-batches per update, or auto\n"),
    ("accum.reduction=1", "accum.reduction=1: no such choice; choose from mean, sum\n"),
    ("model.memory=70.5", "must be a whole number or text; choose from store, recompute, reverse, or a number of MB"),
    ("eval.every=0.5", "eval.every=0.5: must be a number of updates or epoch; for example eval.every=epoch\n"),
    ("run.resume=1", "run.resume=1: must be true, false or force\n"),
    ("loss.class_weights=3", "class_weights=3: must be balanced, a mapping from class names to weights, or for"),
    ("loss.class_weights=[1,a]", "loss.class_weights[1]=a: must be a number\n"),
    ("accum.steps=most", "accum.steps=most: must be a number of micro-batches per update, or auto"),
    ("batch_size=63 accum.steps=auto device.virtual=2", "batch_size=63 is not divisible by accum.steps=1 x 2 replicas"),
    ("accum=4", "accum=4: no such choice; choose from auto, fixed; a number is accum.steps=4"),
    ("-m accum=4,8", "accum=4: no such choice; choose from auto, fixed; a number is accum.steps=4"),
    ("model=50", "model=50: no such choice; choose from"),
    (
        "data=tokens data.path=a",
        "data=tokens: is several kinds by the form of the data; write data=texts data.path=a\n",
    ),
    (
        "data=tokens data.path=a.jsonl data.text_key=say",
        "write data=table data.path=a.jsonl data.text_column=say data.label_column=label, without data.text_key\n",
    ),
    ("data=tokens data.path=a.npz data.length=4", "write data=npz data.path=a.npz\n"),
    ("data=photos", "data=photos: no such choice; choose from"),
    ("data=photos/", "data=photos: no such choice; choose from"),
    ("data.path=photos", "tfrecord or texts; choose one, as in data=folder data.path=photos\n"),
    ("data.path=mine.npz", "tfrecord or texts; choose one, as in data=npz data.path=mine.npz\n"),
    ("data.path=a/labels.csv", "tfrecord or texts; choose one, as in data=table data.path=a/labels.csv\n"),
    (f"data={Path(__file__).parent}/", f"no such choice; data=folder data.path={Path(__file__).parent} reads it\n"),
    ("train=4", "train=4: train is a group of keys; set one of them, train.<key>=<value>"),
    ("precision=fp32", "precision=fp32: no such choice; choose from float32, bfloat16, float16, float64"),
    ("model=resnet20 model.memory=reverse", "resnet20 is not reversible; use model.memory=recompute"),
    ("model=keras model.name=VGG16 model.memory=reverse", "VGG16 is not reversible; use model.memory=recompute"),
    ("model=keras model.name=VGG16 model.kept_share=0.5", "model.memory=store keeps everything"),
    ("model=keras model.name=VGG16 model.kept_share=1", "must be at least 0 and below 1"),
    (
        "model=keras model.name=VGG16 model.memory=90 model.kept_share=0.5",
        "leave model.kept_share out, or use model.memory=recompute",
    ),
    ("model.units=[3,3]", "model.filters=[32,32,64,112]: must hold 3 numbers"),
    ("model.units=3", "model.units=3: must be a list of whole numbers; write model.units=[3]"),
    ("model.units=[3,0,3]", "must hold one number of at least 1 per stage"),
    ("model.filters=[32,32,64,113]", "must be even, each stream of a RevNet carries half"),
    ("model.filters=[32,32,64,-2]", "every number must be at least 1"),
    ("model.filters=[64,32,64,112]", "no number be below the one before it, or use model.bottleneck=true"),
    ("model=resnet20 model.filters=[32,32,64,32]", "model.filters=[32,32,64,32]: 32 follow 64 channels"),
    ("model.stem=imagnet", "model.stem=imagnet: no such choice; did you mean imagenet?"),
    ("model.snap_bits=27", "model.snap_bits=27: must be at least 0 and below 27"),
    ("model=resnet20 model.snap_bits=3", "the chosen model has no such key, it belongs to kind revnet"),
    ("model=resnet21", "model=resnet21: no such choice; did you mean"),
    ("model=resnet", "model=resnet: no such choice; did you mean"),
    (
        "model=efficientnet",
        "use model=keras model.name=EfficientNetV2B0 model.weights=imagenet, or leave the last one out",
    ),
    ("model=vgg16", "model=vgg16: no such choice; models of keras.applications are chosen by name: use model=keras"),
    ("model=resnet20 model.weights=imagenet", "Keras has no such weights for resnet20; choose model=keras model.name="),
    ("model=keras model.name=MobilNet model.weights=imagenet", "Keras has no such model; did you mean MobileNet or"),
    (
        "model=keras model.name=ResNet50V2 model.weights=imagenet data.mean=[0.4]",
        "data.mean=[0.4]: ResNet50V2 with model.weights=imagenet expects the colour images of its training; give "
        "data.mean=[0.5] data.std=[0.5], or leave both out, which sets them",
    ),
    (
        "model=keras model.name=MobileNetV3Small model.weights=imagenet data.std=[1,1,1]",
        "data.std=[1.0,1.0,1.0]: MobileNetV3Small with model.weights=imagenet expects the colour images",
    ),
    (
        "model=keras model.name=ConvNeXtTiny model.weights=imagenet model.args={include_preprocessing:false}",
        "for the default of include_preprocessing; leave model.args out, or only that argument",
    ),
    ("model.kind=revnets", "model.kind=revnets: no such kind; did you mean revnet"),
    ("modle=resnet20", "modle: no such key; did you mean model?"),
    ("batchsize=3", "batchsize: no such key; did you mean batch_size?"),
    ("recip=strong", "recip: no such key; did you mean recipe?"),
    ("lr=0.1", "lr: no such key; did you mean optim.lr?"),
    ("b@tch_size!=3", "b@tch_size!: no such key; did you mean batch_size?"),
    ("zzzz=0.1", "zzzz: no such key; accumtrain --cfg job lists all keys"),
    ("+train.step=3", "train.step: no such key in train; did you mean steps?"),
    ("optim=adam optim.lr=null", "only adafactor has a rate of its own"),
    ("optim=adam optim.lr=0", "optim.lr=0.0: must be above 0"),
    ("optim=adam optim.beta2=0.99999999", "optim.beta2=0.99999999: must be at least 0 and below 0.9999999702"),
    ("optim=adamw optim.beta1=1", "optim.beta1=1.0: must be at least 0 and below 0.9999999702"),
    ("optim=sgd optim.momentum=0 optim.nesterov=true", "no momentum to look ahead by; set optim.momentum=0.9"),
    ("optim=adam optim.lr=nan", "optim.lr=nan: must be a finite number"),
    ("optim=adam optim.lr=inf", "optim.lr=inf: must be a finite number"),
    ("optim=adam optim.lr=fast", "optim.lr=fast: must be a number or null"),
    ("optim=sgd optim.momentum=1", "optim.momentum=1.0: must be at least 0 and below 1"),
    ("optim=sgd optim.nesterov=1", "optim.nesterov=1: must be true or false"),
    (
        "optim.rates={1:0.1}",
        "optim.rates={1:0.1}: 1 is not text, and the paths of variables are; write patterns of paths, such as optim.",
    ),
    ("optim.clip_norm=-1", "optim.clip_norm=-1.0: must be at least 0"),
    ("optim=keras optim.name=Lion optim.args=3", "optim.args=3: must be a mapping"),
    ("optim.args=3", "optim.args: the chosen optim has no such key, it belongs to kind keras; leave it out"),
    ("optim=adam +optim.momentum=0", "optim.momentum: the chosen optim has no such key, it belongs to kind sgd or ada"),
    (
        "experiment=imagenet_resnet50 optim=adam",
        "optim.momentum: the chosen optim has no such key, it belongs to kind sgd or adafactor; "
        "experiment=imagenet_resnet50 gives it: add ~optim.momentum",
    ),
    (
        "recipe=strong experiment=cifar10_resnet32 schedule=cosine",
        "recipe=strong or experiment=cifar10_resnet32 gives it and schedule.factor: add ~schedule.boundaries ~schedule",
    ),
    ("experiment=imagenet_resnet50 optim=adam optim.momentum=0", "kind sgd or adafactor; leave it out"),
    ("optim.args.beta_1=0.5", "optim.args: the chosen optim has no such key, it belongs to kind keras"),
    ("optim=keras optim.name=Adam optim.args.beta_1", "optim.args.beta_1: must be key=value"),
    ("optim=keras optim.name=Adam optim.arg.beta_1=0.5", "optim.arg.beta_1: no such key"),
    ("schedule.warmup=-1", "schedule.warmup=-1: must be at least 0"),
    ("schedule=step schedule.boundaries=[60,40]", "must be increasing numbers of updates"),
    ("schedule=step schedule.boundaries=[40,40.5]", "schedule.boundaries[1]=40.5: must be a whole number"),
    ("data.image_size=0", "data.image_size=0: must be at least 1"),
    ("data.image_size=[8,0]", "data.image_size[1]=0: must be at least 1"),
    ("data.image_size=[8]", "data.image_size=[8]: must be one number, or height and width"),
    ("data.image_size=[8,8,3]", "data.image_size=[8,8,3]: must be one number, or height and width"),
    ("data.image_size=[8.5,8]", "data.image_size[0]=8.5: must be a whole number"),
    ("data.image_size=8x8", "data.image_size=8x8: must be a whole number or a list of whole numbers or null"),
    ("data=cifar10 data.download=yes", "data.download=yes: must be true or false"),
    ("data.std=[0.0]", "data.std=[0.0]: must be above 0"),
    ("data.mean=[]", "data.mean=[]: must hold one number, or one per channel"),
    ("data.mean=[0.1,0.2,0.3] data.std=[1,1]", "differ in length"),
    ("data.mixup=-1", "data.mixup=-1.0: must be at least 0 and below 100"),
    ("data.cutmix=nan", "data.cutmix=nan: must be a finite number"),
    ("data.erasing=1.5", "data.erasing=1.5: must be at least 0 and at most 1"),
    ("data.magnitude=11", "data.magnitude=11.0: must be at least 0 and at most 10"),
    ("data.sampling=balance", "data.sampling=balance: no such choice; did you mean balanced?"),
    ("loss.label_smoothing=1", "loss.label_smoothing=1.0: must be at least 0 and below 1"),
    ("loss.class_weights=[1,-1]", "loss.class_weights=[1.0,-1.0]: must hold weights of at least 0, and one above 0"),
    ("loss.class_weights=[]", "loss.class_weights=[]: must hold weights"),
    ("loss.class_weights={}", "loss.class_weights={}: must hold weights"),
    ("loss.class_weights={cat:-1}", "loss.class_weights={cat:-1.0}: must hold weights of at least 0"),
    ("loss.class_weights={cat:x}", "loss.class_weights.cat=x: must be a number"),
    ("loss.class_weights=equal", "loss.class_weights=equal: must be balanced, a mapping from class names to weights"),
    ("loss.class_weights=balanced data.sampling=balanced", "both together make them count twice; leave one of the two"),
    ("model.drop_path=1", "model.drop_path=1.0: must be at least 0 and below 1"),
    ("model=lenet5 recipe=strong", "model.drop_path: the chosen model has no such key, it belongs to kind resnet or"),
    (
        "model.norm=group model.norm_momentum=0.99",
        "model.norm_momentum=0.99: model.norm=group has no moving statistics",
    ),
    ("schedule=one_cycle schedule.warmup=5", "schedule.warmup=5: schedule=one_cycle has a rise of its own"),
    ("range_test.low=1 range_test.high=0.1", "range_test.low=1.0 and range_test.high=0.1: the rate rises"),
    ("data.augment=turn", "data.augment=turn: no such choice"),
    ("data=folder data.path=x data.test_fraction=1", "data.test_fraction=1.0: must be above 0 and below 1"),
    ("data=folder data.path=''", "data.path is empty"),
    ("data=npz data.path=x data.scale=2", "data.scale=2: must be auto, 1 or 255"),
    ("data=npz data.path=x data.scale=full", "data.scale=full: must be auto, 1 or 255"),
    ("data=synthetic data.num_classes=1", "data.num_classes=1: must be at least 2"),
    ("device=gpu device.virtual=2", "device.virtual=2: splits the CPU into logical devices, not device=gpu"),
    ("device=cpu device.tensor_float_32=true", "tensor_float_32=true: rounds products of GPUs, not of device=cpu"),
    ("device.virtual=2 device.tensor_float_32=true", "rounds products of GPUs, not of device=auto device.virtual=2"),
    ("device=gpu device.tensor_float_32=true precision=bfloat16", "float32, and precision=bfloat16 has none"),
    ("device.tpu=local", "device.tpu=local: only device=tpu has an address"),
    ("device.runtime=torch", "device.runtime=torch: no such choice; choose from tensorflow, jax, auto"),
    ("device.runtime=jax job=check", "device.runtime=jax: job=check does not compute with JAX; choose job=train"),
    (
        "device.runtime=jax device=multiworker",
        "device.runtime=jax: computes on devices of one machine, not on device=multiworker",
    ),
    (
        "device.runtime=jax device.xla=true",
        "device.runtime=jax: device.xla=true is of TensorFlow's kernels",
    ),
    (
        "device.runtime=jax debug.eager=true",
        "device.runtime=jax: debug.eager=true runs TensorFlow's operations",
    ),
    (
        "device.runtime=jax debug.profile=2",
        "device.runtime=jax: debug.profile is of TensorFlow's",
    ),
    ("device.tpu_topology=v5e", "device.tpu_topology=v5e: must be a generation and its chips along each axis"),
    ("device.tpu_topology=v5:2x2", "device.tpu_topology=v5:2x2: no such generation; did you mean v5"),
    (
        "device=tpu device.memory_limit_mb=300",
        "device.memory_limit_mb=300: limits the memory of a CPU or GPU, not of device=tpu; leave it out",
    ),
    (
        "debug.eager=true job=bench",
        "debug.eager=true and job=bench: this job measures compiled micro-steps; leave debug",
    ),
    ("debug.profile=3 job=bench", "debug.profile=3 and job=bench: updates of a training are profiled; leave"),
    ("debug.profile=0", "debug.profile=0: must be at least 1"),
    ("debug.eager=true job=plan", "debug.eager=true and job=plan"),
    ("debug.eager=true job=memory", "debug.eager=true and job=memory"),
    ("debug.eager=true job=verify", "debug.eager=true and job=verify"),
    ("debug.eager=true accum=auto", "debug.eager=true and accum.steps=auto: probes measure compiled micro-steps"),
    (
        "debug.eager=true job=lr accum=auto",
        "give a number of micro-batches, accum.steps=<number>, or leave debug.eager",
    ),
    ("debug.eager=true model.memory=70", "debug.eager=true and model.memory=70: probes measure compiled micro-steps"),
    ("debug.eager=true device=cpu device.memory_limit_mb=900", "debug.eager=true and device.memory_limit_mb=900: p"),
    ("device.memory_limit_mb=0", "device.memory_limit_mb=0: must be at least 1"),
    ("device=cuda", "device=cuda: no such choice; choose from auto, cpu, gpu, mirrored, multiworker, tpu"),
    ("train.epochs=null", "train.epochs=null and train.steps=null: one must be set"),
    (
        "experiment=cifar10_resnet32 train.epochs=2",
        "train.epochs=2: experiment=cifar10_resnet32 gives train.steps=80000, which takes precedence; "
        "add train.steps=null",
    ),
    (
        "-m experiment=cifar10_resnet32 train.epochs=2,3",
        "train.epochs=2: experiment=cifar10_resnet32 gives train.steps",
    ),
    ("train.epochs=0", "train.epochs=0.0: must be above 0"),
    ("train.steps=0", "train.steps=0: must be at least 1"),
    ("eval.every=often", "eval.every=often: must be a number of updates or epoch"),
    ("eval.every=0", "eval.every=0: must be at least 1"),
    ("checkpoint.keep=0", "checkpoint.keep=0: must be at least 1"),
    ("ema.decay=1", "ema.decay=1.0: must be at least 0 and below 1"),
    ("run.seed=-1", "run.seed=-1: must be at least 0 and below 2147483648"),
    ("run.name=a/b", "run.name=a/b: must be one folder's name"),
    ("run.name=..", "run.name=..: must be one folder's name"),
    ("predict.input={a", "predict.input={a: the value can't be read; quote it twice: predict.input=\"'{a'\""),
    ("job=trian", "job=trian: no such choice; did you mean train?"),
    ("batch_size", "batch_size: must be key=value; did you mean batch_size=<value>?"),
    ("trian", "trian: must be key=value; did you mean job=train"),
    ("resnet23", "resnet23: must be key=value; did you mean model=resnet"),
    ("opti", "opti: must be key=value; did you mean optim=<value>"),
    ("zzzz", "zzzz: must be key=value"),
    ("batch_size=32,64", "batch_size=32,64: several values make a sweep; add -m"),
    ("batch_size=${nothing}", "Interpolation key 'nothing' not found"),
    ("+model=resnet20", "+model=resnet20: there is a choice already; write model=resnet20"),
    ("--cfg job --info", "only one of"),
    ("--config-dir nowhere", "--config-dir nowhere: is not a folder"),
    ("--config-path own", "--config-path own: the configuration of accumtrain can't be replaced; add your own folder"),
    ("--experimental-rerun a.pickle", "would load a pickle, which can run any code"),
    ("--resolve", "--resolve: works only with --cfg"),
    ("--batch_size 32", "--batch_size: no such option; a setting has no dashes; write batch_size=<value> in its place"),
    (
        "--train.epochs=3",
        "--train.epochs=3: no such option; a setting has no dashes; write train.epochs=3 in its place",
    ),
    ("--epochs 3", "--epochs: no such option; a setting has no dashes; write train.epochs=<value> in its place"),
    (
        "--learning-rate=0.1",
        "--learning-rate=0.1: no such option; a setting has no dashes; write optim.lr=0.1 in its place",
    ),
    ("optim.learning_rate=0.1", "optim.learning_rate: no such key; did you mean optim.lr?"),
    ("data.source=folder", "data.source: no such key; did you mean data?"),
    ("gradient_accumulation_steps=4", "gradient_accumulation_steps: no such key; did you mean accum.steps?"),
    ("model.name=resnet20", "model.name=resnet20: it is chosen by its group; write model=resnet20"),
    ("optim.lr=1e39", "optim.lr=1e+39: must be between 1.18e-38 and 3.4e+38"),
    ("optim=adam optim.epsilon=1e-46", "optim.epsilon=1e-46: must be between"),
    ("data.mean=[1e-40]", "data.mean[0]=1e-40: must be between"),
    ("optim=keras optim.name=Adam optim.args.beta_1=-1e39", "optim.args.beta_1=-1e+39: must be between"),
    ("optim=keras optim.name=Adam optim.args={a:[nan]}", "optim.args.a[0]=nan: must be between"),
    ("batch_size=9223372036854775808", "batch_size=9223372036854775808: must be a number of at most 64 bits"),
    ("run.walltime=2h", "run.walltime=2h: must be a time above 0 as for SLURM's --time: minutes, minutes:seconds"),
    ("run.walltime=0:0", "run.walltime=0:0: must be a time above 0"),
    (
        "run.walltime=90",
        "run.walltime=90: a time without quotes in a YAML file looks like this number, too; for 90 min",
    ),
    ("run.walltime=1.5", "run.walltime=1.5: must be text or a whole number or null"),
    ("run.resume=froce", "run.resume=froce: must be true, false or force"),
    ("run.on_nonfinite=ignore", "run.on_nonfinite=ignore: no such choice; choose from stop, skip, rollback"),
    ("run.max_nonfinite=0", "run.max_nonfinite=0: must be at least 1"),
    ("run.hang_timeout=-1", "run.hang_timeout=-1.0: must be at least 0"),
    ("checkpoint.keep_hours=0", "checkpoint.keep_hours=0.0: must be above 0"),
    ("-m batch_size=33,50 accum.steps=4", "batch_size=33 is not divisible by accum.steps=4"),
    ("-m batch_size=32,64 run.name=one", "run.name=one: 2 jobs of the sweep would write runs/one/summary.json"),
    ("-m accum=range(2,5)", "accum=2: no such choice; choose from auto, fixed"),
    ("-m batch_size=range(5,2)", "the sweep has no job: a range or glob among the values is empty"),
    ("-m run.seed=range(0,200) log.every=range(1,1e9)", "a sweep can have at most 10,000 jobs, and this one has more"),
    ("-m optim.lr=interval(0,1)", "interval(...) names no values, and a sweep tries each"),
    ("batch_size=range(1,3)", "batch_size=range(1,3): several values make a sweep"),
    ("experiment=[1,2]", "experiment=2: no such choice; choose from"),
    ("experiment=[[1],2]", "Hydra can't read this command"),
    ("experiment={a:1}", "experiment: must be the name of a choice; choose from"),
    ("-m model=resnet20,resnet21", "model=resnet21: no such choice"),
    ("batch_ramp={0.5:100}", "batch_ramp.0.5=100: must be a multiple of batch_size=64, as the micro-batch stays"),
    ("batch_ramp={0:32}", "both say how large the first batch is; use batch_size=32"),
    ("batch_ramp={0.5:128,0.7:64}", "batch_ramp.0.7=64: the batch before is 128, and a ramp rises; give 192 or more"),
    ("batch_ramp={0.5:64}", "batch_ramp.0.5=64: the batch before is 64, and a ramp rises; give 128 or more"),
    ("batch_ramp={1:128}", "batch_ramp: 1 is no share of the training; use numbers from 0 to below 1, such as"),
    ("batch_ramp={nan:128}", "batch_ramp: nan is no share of the training"),
    ("batch_ramp={0.5:12.5}", "batch_ramp.0.5=12.5: must be a whole number"),
    ("batch_ramp=128", "batch_ramp=128: must be a mapping"),
    ("optim=adam optim.half_life=100 optim.beta2=0.9", "use optim.beta2=0.999, its default, or optim.half_life=null"),
    ("optim=adam optim.half_life_first=9 optim.beta1=0", "use optim.beta1=0.9, its default, or"),
    ("optim.half_life=100 optim.beta2=0.9", "use optim.beta2=null, its default, or optim.half_life=null"),
    ("optim=adam optim.half_life=0", "optim.half_life=0.0: must be above 0"),
    ("optim=sgd optim.half_life=10", "optim.half_life: the chosen optim has no such key, it belongs to kind"),
    ("ema.half_life=10 ema.decay=0.9", "use ema.decay=0, or ema.half_life=null"),
]


TOO_LONG = "a path has at most 3500 bytes here, and each name in it 255; give a shorter one, such as a link to it"


@pytest.mark.parametrize(
    ("arguments", "value", "message"),
    [
        ("run.dir=", "a" * 5000, TOO_LONG),
        ("run.name=", "a" * 5000, "can't be used: File name too long; choose another run.dir or run.name"),
        ("data=npz data.path=", "a" * 5000, TOO_LONG),
        ("data=npz data.path=", "a/" * 2000, TOO_LONG),
        ("data=npz data.path=", "é" * 128, TOO_LONG),
        ("data=texts data.path=x data.tokenizer=", "a" * 5000, TOO_LONG),
        ("model.weights=", "a" * 5000, TOO_LONG),
        ("--config-dir=", "a" * 5000, TOO_LONG),
    ],
    ids=range(8),
)
def test_a_path_that_is_too_long_is_told_in_short(arguments, value, message, command, seen):
    answer = command(*f"{arguments}{value}".split(" "))
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert len(answer.err) < 600


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[arguments for arguments, _ in MISTAKES])
def test_mistake_gets_one_message_and_writes_nothing(arguments, message, command, seen, tmp_path):
    answer = command(*arguments.split(" "))
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1, "one message, no traceback"
    assert seen == list(tmp_path.iterdir()) == []


WALLTIMES = {"59": 3540, "'90'": 5400, "1:30": 90, "1:30:05": 5405, "2-0": 172_800, "1-12:30": 131_400}
WALLTIMES |= {"1-12:30:05": 131_405, "00:10:00": 600, "null": None}


@pytest.mark.parametrize(("written", "seconds"), WALLTIMES.items())
def test_walltime_is_written_as_for_slurm(written, seconds, compose):
    assert compose(f"run.walltime={written}").run.walltime_seconds == seconds


def test_limits_of_numbers_are_allowed(compose):
    config = compose("run.seed=2147483647", "model.snap_bits=20", "ema.decay=0", "schedule.final=0", "optim.lr=1")
    assert config.run.seed == 2**31 - 1
    assert math.isclose(config.optim.lr, 1.0)
    assert isinstance(config.optim.lr, float), "a whole number is a number"


def test_a_mapping_needs_only_what_has_no_default(compose):
    assert from_mapping({}) == Config() == compose()
    assert from_mapping({"optim": {"kind": "sgd"}}) == Config(optim=SgdConfig())
    with pytest.raises(ConfigError, match=r"model\.name has no value; add model\.name=MobileNetV2"):
        from_mapping({"model": {"kind": "keras"}})


def test_one_argument_of_a_keras_class_is_a_key(compose):
    optim = compose("optim=keras", "optim.name=Adam", "optim.args.beta_2=0.95", "optim.args.amsgrad=true").optim
    assert optim.args == {"beta_2": 0.95, "amsgrad": True}
    assert compose("model=keras", "model.name=MobileNet", "model.args.alpha=0.5").model.args == {"alpha": 0.5}


def test_one_argument_of_a_keras_class_on_the_command_line(command, seen):
    keras = ("optim=keras", "optim.name=Adam", "model=keras", "model.name=MobileNet", "data=synthetic")
    assert command(*keras, "optim.args={beta_1:0.5}", "optim.args.beta_2=0.95").code == 0
    assert command(*keras, "optim.args.beta_2=0.95", "optim.args={beta_1:0.5}").code == 0
    assert command("-m", *keras, "optim.args.beta_2=0.9,0.95", "model.args.alpha=0.5").code == 0
    assert [(config.optim.args, config.model.args) for config in seen] == [
        ({"beta_1": 0.5, "beta_2": 0.95}, {}),
        ({"beta_1": 0.5, "beta_2": 0.95}, {}),
        ({"beta_2": 0.9}, {"alpha": 0.5}),
        ({"beta_2": 0.95}, {"alpha": 0.5}),
    ]
    assert len({config.run.name for config in seen}) == 3, "the first two are the same run"


@pytest.mark.parametrize("model", [[], ["model=keras", "model.name=VGG16"]])
def test_float64_with_group_norm_or_keras(model, compose):
    assert compose("precision=float64", *model).precision == "float64"
