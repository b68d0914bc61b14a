"""The facts that users and their files rely on, as lines of text. Each section is a function that makes its lines."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import accumtrain
from accumtrain import errors
from accumtrain.backprop.model import Model
from accumtrain.cli.choices import all_choices
from accumtrain.cli.help import help_text
from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import list_config_classes, list_keys
from accumtrain.config.schema import Config
from accumtrain.data.config import TextsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.sources.config import SOURCES
from accumtrain.dispatch import run
from accumtrain.fields import Role, roles_of
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.config import OPTIMIZERS
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import build_window
from accumtrain.train.checkpoint import Checkpoints
from tests.conftest import composed
from tests.contract.examples import EXAMPLES, example_of, tells_of
from tests.contract.files import WRITERS
from tests.manifests import FACTS

Lines = Iterator[str]
SMALL = ("model=lenet5", "data.val_fraction=0", "batch_size=64", "accum.steps=2", "run.name=one", "run.dir=runs")
OF_A_JOB = {
    "train": ("train.steps=4", "eval.every=2", "checkpoint.every=2", "log.every=1"),
    "bench": ("bench.updates=2", "bench.seconds=0"),
    "lr": ("range_test.updates=30",),
    "batch": ("batch_test.batches=[32,64]", "batch_test.examples=64", "batch_test.seeds=1"),
    "predict": (f"predict.input={Path(__file__).parents[2] / 'docs' / 'scaling.png'}",),
}
QUICK_JOBS = ("train", "evaluate", "predict", "check", "report")
EXAMPLES_READ = 100
HEX_DIGITS = 16
VOCABULARY = 300  # ids of the tokens of a model of texts
AUGMENTED: dict[str, Any] = {
    **{"augment": "inception", "jitter": 0.4, "randaugment": 2, "erasing": 0.5, "mixup": 0.2, "cutmix": 0.5},
    **{"image_size": [9, 7], "sampling": "balanced"},
}
VARIANTS: dict[str, dict[str, Any]] = {"plain": {"augment": "none"}, "augmented": AUGMENTED}
TEXT_VARIANTS: dict[str, dict[str, Any]] = {"plain": {}, "by length": {"by_length": True}}


# --- names and texts ----------------------------------------------------------------------------------------------


def public_names() -> Lines:
    """List what programs import."""
    yield from sorted(dir(accumtrain))
    own = (name for name, value in vars(accumtrain.keras).items() if getattr(value, "__module__", None))
    yield from sorted(f"keras.{name}" for name in own if name[0] != "_")


def keys() -> Lines:
    """List the keys of each class of keys, with type and default."""
    for key in list_keys(Config):
        yield f"{key.name}: {key.type} = {key.default}"
    for group, found in list_config_classes().items():
        for record in found:
            names = [each.name for each in fields(record)]
            kind = f" (kind {record.kind})" if "kind" in names and record.kind else ""
            for key in list_keys(record, group):
                default = f"required, such as {key.default}" if key.required else key.default
                yield f"{key.name}{kind}: {key.type} = {default}"


def roles() -> Lines:
    """List the roles of the keys of each class of keys."""
    classes = {"": [Config], **list_config_classes()}
    for group, found in classes.items():
        for record in found:
            kind = f" (kind {record.kind})" if getattr(record, "kind", "") else ""
            for name, role in roles_of(record).items():
                if group or name not in classes:
                    said = (each.lower() for each, part in Role.__members__.items() if part and part in role)
                    yield f"{group}.{name}".lstrip(".") + f"{kind}: {' '.join(said) or '-'}"


def jobs() -> Lines:
    """List the jobs with the file of each."""
    return (f"{job.name}: {job.file}" for job in JOBS)


def exit_codes() -> Lines:
    """List the errors with the exit code of each."""
    for name, value in sorted(vars(errors).items()):
        if isinstance(value, type) and issubclass(value, errors.AccumtrainError):
            yield f"{name}: {value.exit_code}"


def help_page() -> Lines:
    """Return the lines of `accumtrain --help`."""
    yield from help_text([]).splitlines()


# --- variables and checkpoints ------------------------------------------------------------------------------------


def models() -> Lines:
    """List the variables of each model: patterns of paths, and a digest of path, shape, dtype and trainable."""
    for choice in all_choices([])["model"]:
        if choice in ("pretrained", "kerashub"):  # whose variables are those of a folder
            continue
        if choice == "keras":
            config, size = example_of("model", "keras"), 64
        else:
            config, size = composed(f"model={choice}").model, 32
        if config.takes == "arrays":
            spec = ModelSpec((size,), 10, inputs=("arrays",), draws=False)
        elif config.takes == "tokens":
            spec = ModelSpec((size,), 10, inputs=("tokens",), vocabulary=VOCABULARY, draws=False)
        else:
            spec = ModelSpec((size, size, 3), 10, draws=False, tells=tells_of(config.kind))
        model = build_model(config, spec)
        yield from _variables(choice, model)


def _variables(name: str, model: Model) -> Lines:
    learnable = {id(variable) for variable in model.learnable}
    rows = [
        (path, f"{'learned' if id(each) in learnable else 'fixed'} {tf.as_dtype(each.dtype).name}", tuple(each.shape))
        for path, each in model.named.items()
    ]
    yield f"{name}: {len(rows)} variables, {_sha256(repr(row).encode() for row in rows)}"
    sizes: dict[str, list[int]] = defaultdict(list)
    for path, kind, shape in rows:
        sizes[f"{re.sub(r'[0-9]+', '*', path)}: {kind}"].append(int(np.prod(shape)))
    for pattern, counts in sizes.items():
        yield f"  {pattern}, {len(counts)} of {sum(counts):,} numbers"


def checkpoint_paths() -> Lines:
    """List the tensors in a checkpoint of LeNet, with each optimizer; once with all that a run can add."""
    yield from _paths("everything", "optim=adam", "ema.decay=0.9", "precision=float16")
    yield from _paths("resnet", "model=resnet20", "model.units=[1]", "model.filters=[8,8]", "optim=sgd")
    yield from _paths("revnet", "model=revnet38", "model.units=[1]", "model.filters=[8,8]", "optim=sgd")
    for entry in OPTIMIZERS:
        yield from _paths(entry.name, optim=EXAMPLES["optim"][entry.name])


def _paths(title: str, *overrides: str, **changes: Any) -> Lines:
    config = replace(composed(*SMALL, *overrides), **changes)
    window = build_window(config, open_objective(config), 4, tf.distribute.get_strategy())
    with tempfile.TemporaryDirectory() as folder:
        with Checkpoints(Path(folder), window, keep=1, facts=FACTS.copy) as checkpoints:
            checkpoints.save()
        (index,) = Path(folder).glob("step-*/*.index")
        reader = tf.train.load_checkpoint(str(index.with_suffix("")))
        shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
        yield f"{title}:"
        for path in sorted(shapes):
            yield f"  {path.removesuffix('/.ATTRIBUTES/VARIABLE_VALUE')}: {dtypes[path].name} {shapes[path]}"


# --- examples -----------------------------------------------------------------------------------------------------


def digits() -> Lines:
    """Digest the first examples of the digits, with each kind of crops and flips."""
    variants = VARIANTS | {name: {"augment": name} for name in ("shift", "crop_flip")}
    return _examples_of("digits", variants)


def examples() -> Lines:
    """Digest the first examples of each source, and list what a run remembers of it."""
    for name in SOURCES.names:
        with _own_folder():
            WRITERS[name]()
            of_texts = isinstance(example_of("data", name), TextsConfig)
            yield from _examples_of(name, TEXT_VARIANTS if of_texts else VARIANTS)


def _examples_of(name: str, variants: Mapping[str, dict[str, Any]]) -> Lines:
    config = example_of("data", name)
    for key, value in open_data(config, seed=0).fingerprint.items():
        yield f"{name} {key}: {json.dumps(value)}"
    for variant, changes in variants.items():
        data = open_data(replace(config, **changes), seed=0)
        size = min(EXAMPLES_READ, data.train.size)
        batches = make_train_batches(data, batch=size, first=0, seed=3).take(-(-EXAMPLES_READ // size))
        yield f"{name} train, {variant}: {_digested(batches)}"
    batches = make_eval_batches(open_data(config, seed=0), batch=1).take(EXAMPLES_READ)
    yield f"{name} test: {_digested(batches)}"


def _digested(batches: tf.data.Dataset) -> str:
    """Labels and shares exactly; of images the mean, and a digest that other kernels may change."""
    elements = list(batches.as_numpy_iterator())
    columns = {name: np.concatenate([each[name] for each in elements])[:EXAMPLES_READ] for name in sorted(elements[0])}
    images = columns.pop("inputs")
    digests = [f"{name} {_sha256([value.tobytes()])}" for name, value in columns.items()]
    return ", ".join([*digests, f"images {images.shape} {images.dtype} mean {images.mean(dtype=float):.3f}"]) + (
        f" sha256={_sha256([images.tobytes()])}"
    )


# --- what jobs write ----------------------------------------------------------------------------------------------


def quick_jobs() -> Lines:
    """List files and their keys of jobs that take a second or two."""
    return _written_by(QUICK_JOBS, told=QUICK_JOBS)


def other_jobs() -> Lines:
    """List files and their keys of the other jobs, most of which start child processes."""
    others = [name for name in JOBS.names if name not in QUICK_JOBS]
    return _written_by(["train", *others], told=others)


def _written_by(names: Iterable[str], told: Iterable[str]) -> Lines:
    """List what each job has added to the folder, if it is to be told."""
    with _own_folder():
        known: set[Path] = set()
        for name in names:
            run(composed(f"job={name}", *SMALL, *OF_A_JOB.get(name, ())))
            found = {path for path in Path("runs").rglob("*") if path.is_file()}
            if name in told:
                yield f"{name}:"
                yield from _files(sorted(found - known))
            known |= found


def _files(paths: Iterable[Path]) -> Lines:
    """List files with their keys; keys that are those of an earlier file of that name are not said again."""
    listed: dict[tuple[str, ...], str] = {}
    for path in paths:
        shown = re.sub(r"-[0-9a-f]{8}/", "-DIGEST/", re.sub(r"tfevents[.].*", "tfevents", str(path)))
        keys = (path.name, *_keys_of_file(path))
        if keys[1:] and keys in listed:
            yield f"  {shown}, keys as in {listed[keys]}"
        else:
            listed[keys] = shown
            yield f"  {shown}"
            yield from (f"    {key}" for key in keys[1:])


def _keys_of_file(path: Path) -> Iterable[str]:
    text = path.read_bytes()
    if path.suffix == ".json":
        return sorted(set(_json_keys(json.loads(text))))
    if path.suffix == ".jsonl":
        rows = map(json.loads, text.splitlines())
        return sorted({f"{row.get('split', '')} {key}".strip() for row in rows for key in _json_keys(row)})
    if path.suffix == ".csv":
        return next(csv.reader(text.decode().splitlines()))
    return ()


def _json_keys(value: Any, where: str = "") -> Lines:
    """Dotted keys; elements of a list are `[]`."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _json_keys(inner, f"{where}.{key}" if where else key)
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for each in value:
            yield from _json_keys(each, f"{where}[]")
    elif where:
        yield where


@contextmanager
def _own_folder() -> Iterator[None]:
    """Work in an empty folder, with a cache of its own."""
    before, cache = Path.cwd(), os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = str(Path(folder, "cache"))
        try:
            yield
        finally:
            os.chdir(before)
            if cache is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = cache


def _sha256(parts: Iterable[bytes]) -> str:
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()[:HEX_DIGITS]


FAST = (public_names, keys, roles, jobs, exit_codes, help_page, digits, quick_jobs)
SLOW = (models, checkpoint_paths, examples, other_jobs)
