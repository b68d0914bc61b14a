"""A copy of a Keras model in another process, by way of a folder.

Keras saves architecture, weights, dtype policies and compile state, but not the state of random numbers. It saves the
classes and functions of the user's program by name only. These go beside it in a pickle: by value if they are defined
in __main__ or in a function, else by the name of their module.
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
LAYER_ARGUMENTS = ("name", "dtype", "trainable")  # Keras saves these itself
# objects that hold no layer, loss, metric, optimizer or function of a model
LEAVES = (type, ModuleType, str, bytes, tf.Tensor, tf.Variable, keras.Variable, keras.KerasTensor)


def write_model(model: keras.Model, folder: Path) -> None:
    """Write a model, built or not, compiled or not, with the state of its optimizer, to an existing folder.

    Raises:
        ValueError: Keras can't save the model, a class or function of it can't be pickled, or two classes of it have
            the same name.
    """
    with _refuse_errors(f"{model.name} can't be written for another process"):
        _check_constructors(model)
        with _distinct_names(_own_functions_and_classes(model)) as found, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are saving a model that has not yet been built")
            model.save(folder / MODEL)
            custom = _by_name(found, zipfile.ZipFile(folder / MODEL).read("config.json").decode())
        settings = {name: getattr(keras.config, name)() for name in SETTINGS}
        rest = {"custom": custom, "settings": settings, "state": _state(model)}
        (folder / REST).write_bytes(cloudpickle.dumps(rest))


def read_model(folder: Path) -> keras.Model:
    """Return the model that `write_model` has written, and set dtype policy, floatx and data format of Keras as there.

    Raises:
        ValueError: Keras can't make the model again from what it has saved, or makes another.
    """
    with _refuse_errors("a model can't be made again in another process"):
        rest = cloudpickle.loads((folder / REST).read_bytes())
        for name, value in rest["settings"].items():
            getattr(keras.config, f"set_{name}")(value)
        custom = {name: _deserializer(code) for name, code in rest["custom"].items()}
        with keras.saving.custom_object_scope(custom):
            model = keras.saving.load_model(folder / MODEL)
        lost = [f"{a} became {b}" for a, b in zip_longest(rest["state"], _state(model)) if a != b]
        if lost:
            raise ValueError(f"{len(lost)} things differ: {lost[0]}")
    return model


def _check_constructors(model: keras.Model) -> None:
    """Refuse a subclassed model without a get_config, as Keras does not save its arguments."""
    for layer in model._flatten_layers():
        own = type(layer)
        if not isinstance(layer, keras.Model) or _is_of_keras(own.__init__) or not _is_of_keras(own.get_config):
            continue
        arguments = inspect.signature(own).parameters.values()
        unknown = [a.name for a in arguments if a.kind is not a.VAR_KEYWORD and a.name not in LAYER_ARGUMENTS]
        if unknown and "input_layers" not in layer.get_config():  # a functional model is saved as a whole
            raise ValueError(f"{own.__name__} has no get_config, and Keras loses its {', '.join(unknown)}")


def _is_of_keras(code: Any) -> bool:
    return (code.__module__ or "").split(".")[0] == "keras"


def _own_functions_and_classes(model: keras.Model) -> list[Any]:
    """Return all functions, and classes with a configuration, that a model's parts have and that are not Keras's."""
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    waiting: list[Any] = [model]
    while waiting:
        part = waiting.pop()
        if id(part) in seen or isinstance(part, LEAVES):
            continue
        seen[id(part)] = part
        for own in (part, type(part)):
            if _is_code(own) and not _is_of_keras(own):
                found[id(own)] = own
        waiting += _parts(part)
    return list(found.values())


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType) or (isinstance(value, type) and hasattr(value, "get_config"))


def _parts(value: Any) -> Iterable[Any]:
    """Return the items of a container, or the attributes of an object."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set)):
        return value
    if isinstance(value, FunctionType) or type(value).__module__.split(".")[0] == "tensorflow":
        return ()
    # an attribute in the place of a method is Keras's wrapper around it
    return (part for name, part in getattr(value, "__dict__", {}).items() if not hasattr(type(value), name))


@contextmanager
def _distinct_names(found: list[Any]) -> Iterator[list[Any]]:
    """Give each function a name of its own, because Keras saves functions by name.

    It saves a lambda by its code, without the variables that it refers to. With another name it is none.
    """
    functions = [code for code in found if isinstance(code, FunctionType)]
    before = [function.__name__ for function in functions]
    try:
        for index, function in enumerate(functions):
            function.__name__ = f"{before[index].strip('<>')}_{index}"
        yield found
    finally:
        for function, name in zip(functions, before, strict=True):
            function.__name__ = name


def _by_name(found: list[Any], config: str) -> dict[str, Any]:
    """Return the functions and classes that a saved configuration names, by that name."""
    custom: dict[str, Any] = {}
    for code in found:
        name = keras.saving.get_registered_name(code)
        if f'"{name}"' in config and custom.setdefault(name, code) is not code:
            raise ValueError(f"there are two classes {name} in it: rename one")
    return custom


def _deserializer(own: Any) -> Any:
    """Return the function or class, or a stand-in for a class whose constructor takes too few of Keras's arguments."""
    if isinstance(own, FunctionType) or not issubclass(own, keras.Layer):
        return own
    takes_all = any(argument.kind is argument.VAR_KEYWORD for argument in inspect.signature(own).parameters.values())
    return own if takes_all or not _is_of_keras(own.from_config) else WithoutKeywords(own)


class WithoutKeywords:
    """A stand-in for a layer class whose constructor has no **kwargs. Keras would give it its own arguments, too."""

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
    """Return in words what a copy may have lost without an error of Keras."""
    return [
        "a model that is compiled" if getattr(model, "optimizer", None) is not None else "a model that is not compiled",
        f"layers of the policies {', '.join(sorted({layer.dtype_policy.name for layer in model._flatten_layers()}))}",
        *(f"a {'' if v.trainable else 'frozen '}weight of shape {tuple(v.shape)}, {v.dtype}" for v in model.weights),
    ]


@contextmanager
def _refuse_errors(what: str) -> Iterator[None]:
    """Raise any error of Keras, of the pickle or of the user's classes as a ValueError with a remedy."""
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
