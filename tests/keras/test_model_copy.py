"""A copy of a model in another process: the same predictions and the same next update, to the bit, or a refusal."""

import threading
from typing import Any

import keras
import pytest

from accumtrain.keras.run.model_copy import read_model, write_model
from tests.keras import copied
from tests.keras.programs import run_python

READ = """
import sys
from pathlib import Path
import numpy as np
from accumtrain.keras.run.model_copy import read_model
from tests.keras.copied import updated
assert "OwnDense" not in vars(sys.modules["__main__"])
for folder in sorted(Path(sys.argv[1]).iterdir()):
    model, expected = read_model(folder), np.load(folder / "next.npz")
    found = updated(model) if model.built else {}
    same = found.keys() == {*expected} and all(np.array_equal(found[name], expected[name]) for name in found)
    print(folder.name, len(found), "same" if same else "differs")
"""


@pytest.mark.slow
def test_copies_of_a_programs_own_classes_are_the_same_to_the_bit(tmp_path):
    run_python(copied.__file__, str(tmp_path))
    lines = [line.split() for line in run_python("-c", READ, str(tmp_path)).splitlines()]
    assert {name for name, _, _ in lines} == {f"{f.__name__}-{done}" for f in copied.MODELS for done in (False, True)}
    for name, values, verdict in lines:
        assert verdict == "same", name
        assert int(values) >= 4 or name in ("not_built-False", "subclassed-False")


class TakesALayer(keras.layers.Layer):
    def __init__(self, inner: keras.layers.Layer) -> None:
        super().__init__()
        self.inner = inner

    def call(self, x: Any) -> Any:
        return self.inner(x)


class Dropping(keras.Sequential):
    def __init__(self, rate: float = 0.1) -> None:
        super().__init__([keras.Input((3,)), keras.layers.Dropout(rate)])


class OwnDense(copied.OwnDense):
    pass


LOCK = threading.Lock()
REFUSED = {
    "a class that Keras can't save": (TakesALayer(keras.layers.Dense(2)), "(?s)TakesALayer.*a get_config with all arg"),
    "an argument that Keras loses": (Dropping(0.5), "Dropping has no get_config, and Keras loses its rate"),
    "two classes of one name": (OwnDense(2), "two classes OwnDense in it: rename one"),
    "no pickle": (
        keras.layers.Lambda(lambda x: x * (not LOCK.locked())),
        "can't be written for another process: .*pickle",
    ),
}


@pytest.mark.parametrize(("layer", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_can_not_be_written_is_refused(tmp_path, layer, message):
    with pytest.raises(ValueError, match=message):
        write_model(keras.Sequential([keras.Input((3,)), layer, copied.OwnDense(2)]), tmp_path)


def test_functions_have_their_names_again(tmp_path):
    model = copied.own_functions()
    write_model(model, tmp_path)
    assert copied.scaled_tanh.__name__ == "scaled_tanh"
    assert model.layers[0].function.__name__ == "<lambda>"


def test_what_keras_would_lose_is_refused(tmp_path):
    model = copied.Subclassed()
    model(copied.X)
    model.head.trainable = False
    write_model(model, tmp_path)
    with pytest.raises(ValueError, match=r"a frozen weight of shape \(3, 2\), float32 became a weight of shape"):
        read_model(tmp_path)


def test_a_compile_of_its_own_is_refused(tmp_path):
    class OwnCompile(keras.Sequential):
        def compile(self, *arguments: Any, strength: float, **named: Any) -> None:
            super().compile(*arguments, **named)

    model = OwnCompile([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", strength=2.0)
    write_model(model, tmp_path)
    with pytest.warns(UserWarning, match="compile"), pytest.raises(ValueError, match="became a model that is not comp"):
        read_model(tmp_path)
