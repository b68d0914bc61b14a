"""A copy of a Keras model in another process, by way of a folder.

Keras saves architecture, weights, dtype policies and compile state, but not the state of random numbers. The classes
and functions of the user's program, which Keras saves by name only, go beside it in a pickle: by value if they are
defined in __main__ or in a function, else by the name of their module.
"""

from __future__ import annotations

import inspect
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
import keras
import tensorflow as tf

MODEL, REST = "model.keras", "rest.pickle"
SETTINGS = ("floatx", "image_data_format", "dtype_policy")  # of keras.config
OF_EVERY_LAYER = ("name", "dtype", "trainable")  # arguments that Keras saves itself
# objects that hold no layer, loss, metric, optimizer or function of a model
LEAVES = (type, ModuleType, str, bytes, tf.Tensor, tf.Variable, keras.Variable, keras.KerasTensor)


def write_model(model: keras.Model, folder: Path) -> None:
    """Writes a model, built or not, compiled or not, with the state of its optimizer, to an existing folder.

    Raises:
        ValueError: Keras can't save the model, a class or function of it can't be pickled, or two classes of it have
            the same name.
    """
    with _refusing(f"{model.name} can't be written for another process"):
        _check_constructors(model)
        with _distinct_names(_own_functions_and_classes(model)) as found, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are saving a model that has not yet been built")
            model.save(folder / MODEL)
            custom = _by_name(found, zipfile.ZipFile(folder / MODEL).read("config.json").decode())
        settings = {name: getattr(keras.config, name)() for name in SETTINGS}
        rest = {"custom": custom, "settings": settings, "state": _state(model)}
        (folder / REST).write_bytes(cloudpickle.dumps(rest))


def read_model(folder: Path) -> keras.Model:
    """Reads what `write_model` has written, and sets dtype policy, floatx and data format of Keras to those it had.

    Raises:
        ValueError: Keras can't make the model again from what it has saved, or makes another.
    """
    with _refusing("a model can't be made again in another process"):
        rest = cloudpickle.loads((folder / REST).read_bytes())
        for name, value in rest["settings"].items():
            getattr(keras.config, f"set_{name}")(value)
        custom = {name: _deserializer(each) for name, each in rest["custom"].items()}
        with keras.saving.custom_object_scope(custom):
            model = keras.saving.load_model(folder / MODEL)
        lost = [f"{a} became {b}" for a, b in zip_longest(rest["state"], _state(model)) if a != b]
        if lost:
            raise ValueError(f"{len(lost)} things differ: {lost[0]}")
    return model


def _check_constructors(model: keras.Model) -> None:
    """Refuses what Keras saves with other arguments: it takes those of a subclassed model for the defaults."""
    for each in model._flatten_layers():
        own = type(each)
        if not isinstance(each, keras.Model) or _is_of_keras(own.__init__) or not _is_of_keras(own.get_config):
            continue
        arguments = inspect.signature(own).parameters.values()
        unknown = [a.name for a in arguments if a.kind is not a.VAR_KEYWORD and a.name not in OF_EVERY_LAYER]
        if unknown and "input_layers" not in each.get_config():  # which holds a functional model as a whole
            raise ValueError(f"{own.__name__} has no get_config, and Keras loses its {', '.join(unknown)}")


def _is_of_keras(each: Any) -> bool:
    return (each.__module__ or "").split(".")[0] == "keras"


def _own_functions_and_classes(model: keras.Model) -> list[Any]:
    """All functions, and classes with a configuration, that the parts of a model have and that are not Keras's."""
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    waiting: list[Any] = [model]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, LEAVES):
            continue
        seen[id(each)] = each
        for own in (each, type(each)):
            if _is_code(own) and not _is_of_keras(own):
                found[id(own)] = own
        waiting += _parts(each)
    return list(found.values())


def _is_code(each: Any) -> bool:
    return isinstance(each, FunctionType) or (isinstance(each, type) and hasattr(each, "get_config"))


def _parts(each: Any) -> Iterable[Any]:
    """Returns what a container holds, or the attributes of an object."""
    if isinstance(each, dict):
        return each.values()
    if isinstance(each, (list, tuple, set)):
        return each
    if isinstance(each, FunctionType) or type(each).__module__.split(".")[0] == "tensorflow":
        return ()
    # an attribute in the place of a method is Keras's wrapper around it
    return (part for name, part in getattr(each, "__dict__", {}).items() if not hasattr(type(each), name))


@contextmanager
def _distinct_names(found: list[Any]) -> Iterator[list[Any]]:
    """Gives each function a name of its own, as Keras saves them by name, and a lambda without what it refers to."""
    functions = [each for each in found if isinstance(each, FunctionType)]
    before = [function.__name__ for function in functions]
    try:
        for place, function in enumerate(functions):
            function.__name__ = f"{before[place].strip('<>')}_{place}"
        yield found
    finally:
        for function, name in zip(functions, before, strict=True):
            function.__name__ = name


def _by_name(found: list[Any], config: str) -> dict[str, Any]:
    """The functions and classes that a saved configuration names, by that name."""
    custom: dict[str, Any] = {}
    for each in found:
        name = keras.saving.get_registered_name(each)
        if f'"{name}"' in config and custom.setdefault(name, each) is not each:
            raise ValueError(f"there are two classes {name} in it: rename one")
    return custom


def _deserializer(own: Any) -> Any:
    """Returns what Keras can call `from_config` of: the class, unless its constructor takes too few arguments."""
    if isinstance(own, FunctionType) or not issubclass(own, keras.Layer):
        return own
    takes_all = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(own).parameters.values())
    return own if takes_all or not _is_of_keras(own.from_config) else WithoutKeywords(own)


class WithoutKeywords:
    """In place of a layer class whose constructor has no **kwargs, to which Keras would give its own arguments too."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def from_config(self, config: dict[str, Any]) -> Any:
        if "input_layers" in config:  # of a functional model
            return self._own.from_config(config)
        taken = inspect.signature(self._own).parameters
        layer = self._own(**{name: value for name, value in config.items() if name in taken})
        layer.trainable = config.get("trainable", True)
        return layer


def _state(model: keras.Model) -> list[str]:
    """Says in words what a copy may have lost without an error of Keras."""
    return [
        "a model that is compiled" if getattr(model, "optimizer", None) is not None else "a model that is not compiled",
        f"layers of the policies {', '.join(sorted({layer.dtype_policy.name for layer in model._flatten_layers()}))}",
        *(f"a {'' if v.trainable else 'frozen '}weight of shape {tuple(v.shape)}, {v.dtype}" for v in model.weights),
    ]


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raises any error of Keras, of the pickle or of the user's classes as a ValueError with a remedy."""
    try:
        yield
    except (OSError, tf.errors.ResourceExhaustedError):  # disk or memory is full
        raise
    except Exception as error:
        raise ValueError(
            f"{what}: {type(error).__name__}: {error}\nGive each class of the model a get_config with all arguments "
            "of its constructor, a model with a compile of its own a get_compile_config, and a class that is not found "
            "keras.saving.register_keras_serializable, in a module"
        ) from error
