"""Masks and further arguments in recomputed and reversible Keras layers: all is as with the plain layers."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from accumtrain.keras import Reversible, ReversibleSequence, recompute
from tests.keras.small_models import AttentionBlock

BATCH, STEPS, CHANNELS, WORDS = 3, 5, 4, 9
pytestmark = [
    pytest.mark.usefixtures("seeded"),
    pytest.mark.filterwarnings("ignore:.*was passed an input with a mask"),  # of models, by Keras
]
SEQUENCE, IMAGES = (STEPS, CHANNELS), (STEPS, 4, 4, CHANNELS)


class Masked(NamedTuple):
    """A layer that supports masking, and how it is called with x; `as_f` makes it one that keeps the shape of x."""

    build: Callable[[], keras.layers.Layer]
    shape: tuple[int, ...] = SEQUENCE
    arguments: Callable[[tf.Tensor], tuple[Any, ...]] = lambda x: (x,)
    as_f: Callable[[keras.layers.Layer], keras.layers.Layer] = lambda layer: layer


def two(x: tf.Tensor) -> tuple[Any, ...]:
    """Two masked tensors, as a list."""
    return ([x, carrying(0.5 * x, x._keras_mask[::-1])],)


def words(x: tf.Tensor) -> tuple[Any, ...]:
    return (tf.cast(tf.abs(x[..., 0]) * 3.0, tf.int32) % WORDS,)


def of_two(layer: keras.layers.Layer) -> keras.layers.Layer:
    x = keras.Input(SEQUENCE)
    return keras.Model(x, layers.Dense(CHANNELS)(layer([x, layers.Dense(CHANNELS)(x)])))


def of_words(layer: keras.layers.Layer) -> keras.layers.Layer:
    x = keras.Input(SEQUENCE)
    place = ops.cast(ops.abs(x[..., 0]) * 3.0, "int32") % WORDS
    return keras.Model(x, layers.Multiply()([x, layer(place)]))


def repeated(layer: keras.layers.Layer) -> keras.layers.Layer:
    return keras.Sequential([layer, layers.RepeatVector(STEPS)])


def recurrent(kind: type, **arguments: Any) -> Masked:
    return Masked(lambda: kind(CHANNELS, return_sequences=True, **arguments))


def convolved(kind: type, shape: tuple[int, ...]) -> Masked:
    return Masked(lambda: kind(CHANNELS, 3, padding="same", return_sequences=True), shape)


def merging(kind: type, *arguments: Any) -> Masked:
    return Masked(lambda: kind(*arguments), SEQUENCE, two, of_two)


ALONE = ("BatchNormalization", "ELU", "Identity", "LayerNormalization", "LeakyReLU", "Masking", "PReLU", "ReLU")
MERGING = (
    "Add",
    "AdditiveAttention",
    "Attention",
    "Average",
    "Concatenate",
    "Maximum",
    "Minimum",
    "Multiply",
    "Subtract",
)
TABLE = {
    **{name: Masked(getattr(layers, name)) for name in (*ALONE, "UnitNormalization")},
    **{name: merging(getattr(layers, name)) for name in MERGING},
    "Activation": Masked(lambda: layers.Activation("tanh")),
    "ActivityRegularization": Masked(lambda: layers.ActivityRegularization(0.1)),
    "AlphaDropout": Masked(lambda: layers.AlphaDropout(0.3)),
    "Bidirectional": Masked(
        lambda: layers.Bidirectional(layers.LSTM(CHANNELS, return_sequences=True), merge_mode="sum")
    ),
    "ConvLSTM1D": convolved(layers.ConvLSTM1D, IMAGES[1:]),
    "ConvLSTM2D": convolved(layers.ConvLSTM2D, IMAGES),
    "ConvLSTM3D": convolved(layers.ConvLSTM3D, (STEPS, 2, 2, 2, CHANNELS)),
    "Dense": Masked(lambda: layers.Dense(CHANNELS, "tanh")),
    "Dot": merging(layers.Dot, 2),
    "Dropout": Masked(lambda: layers.Dropout(0.3)),
    "Embedding": Masked(lambda: layers.Embedding(WORDS, CHANNELS, mask_zero=True), SEQUENCE, words, of_words),
    "GRU": recurrent(layers.GRU),
    "GaussianDropout": Masked(lambda: layers.GaussianDropout(0.3)),
    "GaussianNoise": Masked(lambda: layers.GaussianNoise(0.3)),
    "GlobalAveragePooling1D": Masked(layers.GlobalAveragePooling1D, as_f=repeated),
    "GroupNormalization": Masked(lambda: layers.GroupNormalization(2)),
    "GroupQueryAttention": Masked(lambda: layers.GroupQueryAttention(2, 2, 1), arguments=lambda x: tuple(two(x)[0])),
    "LSTM": recurrent(layers.LSTM, dropout=0.3),
    "Lambda": Masked(lambda: layers.Lambda(zeroed, mask=passed)),
    "MultiHeadAttention": Masked(
        lambda: layers.MultiHeadAttention(2, 2, dropout=0.3), arguments=lambda x: tuple(two(x)[0])
    ),
    "Normalization": Masked(lambda: layers.Normalization(mean=0.5, variance=2.0)),
    "RNN": Masked(lambda: layers.RNN(layers.GRUCell(CHANNELS), return_sequences=True)),
    "Rescaling": Masked(lambda: layers.Rescaling(0.5)),
    "ReversibleEmbedding": Masked(
        lambda: layers.ReversibleEmbedding(WORDS, CHANNELS, mask_zero=True), SEQUENCE, words, of_words
    ),
    "SimpleRNN": recurrent(layers.SimpleRNN),
    "Softmax": Masked(layers.Softmax, (CHANNELS,)),
    "SpatialDropout1D": Masked(lambda: layers.SpatialDropout1D(0.3)),
    "SpatialDropout2D": Masked(lambda: layers.SpatialDropout2D(0.3), IMAGES[1:]),
    "SpatialDropout3D": Masked(lambda: layers.SpatialDropout3D(0.3), IMAGES),
    "TimeDistributed": Masked(lambda: layers.TimeDistributed(layers.Dense(CHANNELS))),
}
SAME = {"GlobalAvgPool1D": "GlobalAveragePooling1D"}  # another name of a class
NONE = {"Wrapper", "InputLayer"}  # compute nothing
FAST = ("Embedding", "LSTM", "MultiHeadAttention")


def zeroed(x: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    return x if mask is None else x * ops.cast(mask, x.dtype)[..., None]


def passed(inputs: Any, mask: Any) -> Any:
    return mask


def supports_masking(kind: type) -> bool:
    """By the source of the class: it sets `supports_masking`, or computes a mask."""
    bases = kind.__mro__[: kind.__mro__.index(keras.layers.Layer)]
    sets = re.compile(r"self\.supports_masking = (?!False)")
    return any("compute_mask" in vars(base) or sets.search(inspect.getsource(base)) for base in bases)


def test_the_table_has_every_layer_that_supports_masking() -> None:
    kinds = {name: kind for name, kind in vars(layers).items() if inspect.isclass(kind)}
    found = {name for name, kind in kinds.items() if issubclass(kind, layers.Layer) and supports_masking(kind)}
    assert found - SAME.keys() - NONE <= TABLE.keys()


def carrying(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    x = tf.identity(x)
    x._keras_mask = mask
    return x


def masked_input(shape: tuple[int, ...], dtype: str = "float32") -> tf.Tensor:
    """Numbers of which the last steps of the first two examples are masked."""
    x = tf.cast(tf.random.stateless_normal([BATCH, *shape], [0, 1]), dtype)
    lengths = [shape[0] - 2, shape[0] - 1, shape[0]]
    return carrying(x, tf.sequence_mask(lengths, shape[0]))


class Passed(NamedTuple):
    outputs: list[np.ndarray]
    masks: list[Any]
    gradients: list[np.ndarray]
    state: list[np.ndarray]


def passed_through(call: Callable[[tf.Tensor], Any], x: tf.Tensor, variables: list[keras.Variable]) -> Passed:
    """Outputs, masks and gradients of a training pass. Afterwards the variables are as before."""
    before = [variable.numpy() for variable in variables]
    x = carrying(x, x._keras_mask)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.nest.flatten(call(x))
        loss = tf.add_n([tf.reduce_sum(tf.cast(y, tf.float32) ** 2) for y in outputs])
    trained = [variable.value for variable in variables if variable.trainable]
    gradients = tape.gradient(loss, [x, *trained], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    masks = [getattr(y, "_keras_mask", None) for y in outputs]
    after = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return Passed(
        [np.asarray(tf.cast(y, tf.float32)) for y in outputs],
        [None if mask is None else mask.numpy() for mask in masks],
        [np.asarray(tf.cast(tf.convert_to_tensor(each), tf.float32)) for each in gradients],
        after,
    )


def assert_close(expected: list[Any], actual: list[Any], tolerance: float) -> None:
    for e, a in zip(expected, actual, strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance * max(1.0, float(np.max(np.abs(e)))))


def layers_and_policies() -> list[Any]:
    """Each layer in float32, and some in bfloat16."""
    names = [name for name in TABLE if hasattr(layers, name)]
    slow = [pytest.param(name, "float32", marks=pytest.mark.slow) for name in names if name not in FAST]
    half = [pytest.param(name, "mixed_bfloat16", marks=pytest.mark.slow) for name in (*FAST, "BatchNormalization")]
    return [*((name, "float32") for name in FAST), *slow, *half]


@pytest.mark.parametrize(("name", "policy"), layers_and_policies())
def test_a_recomputed_layer_is_the_layer(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    case = TABLE[name]
    layer, x = case.build(), masked_input(case.shape)
    layer(*case.arguments(carrying(x, x._keras_mask)))  # attention takes the masks from what it is given
    again = recompute(layer)
    plain, ours = (
        passed_through(lambda x, call=call: call(*case.arguments(x), training=True), x, layer.variables)
        for call in (layer, again)
    )
    assert_close(plain.outputs, ours.outputs, 0.0)
    assert_close(plain.gradients, ours.gradients, 1e-5 if policy == "float32" else 1e-2)
    assert_close(plain.state, ours.state, 0.0)
    assert all(np.array_equal(a, b) for a, b in zip(plain.masks, ours.masks, strict=True))


def by_formula(f: keras.layers.Layer, g: keras.layers.Layer, x: tf.Tensor) -> tf.Tensor:
    """y1 = x1 + f(x2), y2 = x2 + g(y1) of rounded streams, each with the mask of x."""
    mask = x._keras_mask

    def call(layer: keras.layers.Layer, stream: tf.Tensor) -> tf.Tensor:
        stream = carrying(stream, mask)
        attends = isinstance(layer, (layers.MultiHeadAttention, layers.GroupQueryAttention))
        return tf.cast(layer(*[stream] * (1 + attends), training=True), tf.float32)

    x1, x2 = tf.split(x, 2, axis=-1)
    y1 = x1 + call(f, x2)
    return tf.concat([y1, x2 + call(g, y1)], axis=-1)


@pytest.mark.parametrize(("name", "policy"), layers_and_policies())
def test_a_layer_in_a_reversible_pair_gets_the_mask(name: str, policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    case = TABLE[name]
    f, g = case.as_f(case.build()), case.as_f(case.build())
    x = masked_input((*case.shape[:-1], 2 * CHANNELS))
    if case.shape == (CHANNELS,):  # a mask of the values themselves
        x = carrying(x, tf.random.stateless_uniform([BATCH, CHANNELS], [0, 1]) < 0.7)
    unit = Reversible(f, g)
    unit(carrying(x, x._keras_mask))
    plain, ours = (
        passed_through(call, x, unit.variables)
        for call in (lambda x: by_formula(f, g, x), lambda x: unit(x, training=True))
    )
    assert_close(plain.outputs, ours.outputs, 3e-6 if policy == "float32" else 1e-2)
    # that of a key's bias is 0 but for rounding, beside others of 100
    assert_close(plain.gradients, ours.gradients, 3e-5 if policy == "float32" else 3e-2)
    assert_close(plain.state, ours.state, 1e-6)
    assert np.array_equal(ours.masks[0], x._keras_mask)


def query_and_value() -> tf.Tensor:
    return tf.random.stateless_normal([2, BATCH, STEPS, CHANNELS], [0, 2])


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"key": tf.ones([BATCH, STEPS, CHANNELS]), "use_causal_mask": True},
        {"attention_mask": tf.random.stateless_uniform([BATCH, STEPS, STEPS], [0, 1]) < 0.7, "use_causal_mask": True},
        {"value_mask": tf.sequence_mask([2, 3, 5], STEPS), "return_attention_scores": True},
    ],
)
def test_what_the_call_of_a_layer_takes_its_recomputed_form_takes(arguments: dict[str, Any]) -> None:
    attention, (q, v) = layers.MultiHeadAttention(2, 2), query_and_value()
    expected = attention(q, v, **arguments)
    for ours in (recompute(attention)(q, v, **arguments), recompute(attention)(query=q, value=v, **arguments)):
        assert_close(tf.nest.flatten(expected), tf.nest.flatten(ours), 0.0)


def test_a_layer_is_built_by_all_of_its_arguments() -> None:
    q, v = query_and_value()
    wide = tf.ones([BATCH, 2, 7])
    assert recompute(layers.MultiHeadAttention(2, 2))(q, wide).shape == q.shape
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        recompute(layers.MultiHeadAttention(2, 2))(q, v, nonsense=1)


class Scaled(layers.Layer):
    """Takes a tensor that has a gradient, and one that is a mask."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dense = layers.Dense(CHANNELS, "tanh")

    def build(self, input_shape: Any) -> None:
        self.dense.build(input_shape)

    def call(self, x: Any, padding_mask: Any = None, factor: Any = 1.0) -> Any:
        y = factor * self.dense(x)
        return y if padding_mask is None else y * ops.cast(padding_mask, y.dtype)[..., None]


@pytest.mark.parametrize("way", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_a_reversible_sequence_hands_on_keywords_and_their_gradients(way: Any) -> None:
    """Each layer gets those that it takes, beside the mask of the stream; a bare attention is self-attention."""
    inputs, factor = masked_input((STEPS, 2 * CHANNELS)), tf.constant(0.7)
    mask, padding_mask = inputs._keras_mask, tf.sequence_mask([1, 2, 3], STEPS)
    f, g = layers.MultiHeadAttention(2, 2), Scaled()
    sequence = ReversibleSequence([(f, g), (g, f)])
    sequence(inputs)

    def plain(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        def attend(x: tf.Tensor) -> tf.Tensor:
            x = carrying(x, mask)
            return f(x, x, use_causal_mask=True)

        def scale(x: tf.Tensor) -> tf.Tensor:
            return g(x, padding_mask=padding_mask, factor=factor)

        x1, x2 = tf.split(x, 2, axis=-1)
        y1 = x1 + attend(x2)
        y2 = x2 + scale(y1)
        z1 = y1 + scale(y2)
        return tf.concat([z1, y2 + attend(z1)], axis=-1)

    def ours(x: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        return sequence(x, mask=mask, padding_mask=padding_mask, use_causal_mask=True, factor=factor)

    def step(call: Any, x: tf.Tensor, factor: tf.Tensor) -> list[tf.Tensor]:
        weights = [weight.value for weight in sequence.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch([x, factor])
            y = call(x, factor)
            loss = tf.reduce_sum(y**2)
        return [y, *tape.gradient(loss, [x, factor, *weights])]

    expected, found = (way(partial(step, call))(tf.identity(inputs), factor) for call in (plain, ours))
    assert_close(expected, found, 1e-3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        sequence(inputs, nonsense=1)


def test_a_keyword_may_be_a_variable() -> None:
    inputs, factor = masked_input((STEPS, 2 * CHANNELS)), tf.Variable(0.7)
    pair = Reversible(Scaled(), Scaled())
    with tf.GradientTape() as tape:
        y = pair(inputs, factor=factor)
    assert_close([pair(inputs, factor=tf.constant(0.7))], [y], 0.0)
    assert tape.gradient(y, factor) is not None


def test_each_stream_of_a_pair_has_its_own_mask() -> None:
    f, g = (layers.LSTM(CHANNELS, return_sequences=True) for _ in range(2))
    x1, x2 = (masked_input(SEQUENCE) for _ in range(2))
    x2 = carrying(x2, x2._keras_mask[::-1])
    y1, y2 = ReversibleSequence([(f, g)], snap_bits=0)((x1, x2))
    expected = x1 + f(x2, mask=x2._keras_mask)
    np.testing.assert_allclose(y1, expected, atol=1e-6)
    np.testing.assert_allclose(y2, x2 + g(expected, mask=x1._keras_mask), atol=1e-6)
    assert np.array_equal(y1._keras_mask, x1._keras_mask)
    assert np.array_equal(y2._keras_mask, x2._keras_mask)


def network() -> keras.Model:
    """Masks are made inside a recomputed model, and pass attention and a reversible sequence on to a pooling."""
    words_ = keras.Input((None,), dtype="int32")
    x = recompute(keras.Sequential([layers.Embedding(WORDS, 2 * CHANNELS, mask_zero=True)]))(words_)
    x = recompute(AttentionBlock())(x)
    x = ReversibleSequence([(layers.LSTM(CHANNELS, return_sequences=True), layers.MultiHeadAttention(2, 2))])(x)
    return keras.Model(words_, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


SHORT, PADDED = np.array([[3, 4, 5], [6, 7, 8]]), np.array([[3, 4, 5, 0, 0], [6, 7, 8, 0, 0]])


def test_padding_changes_nothing() -> None:
    model = network()
    np.testing.assert_allclose(model(SHORT), model(PADDED), atol=1e-5)


@pytest.mark.slow
def test_padding_changes_nothing_in_a_model_that_is_trained_saved_and_loaded(tmp_path: Path) -> None:
    found = []
    for sentences in (SHORT, PADDED):
        keras.utils.set_random_seed(1)
        model = network()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        loss = model.fit(sentences, np.ones((2, 3)), epochs=2, verbose=0).history["loss"]
        found.append([np.array(loss), model.predict(SHORT, verbose=0), *model.get_weights()])
    assert_close(*found, 1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(PADDED, verbose=0), found[1][1], atol=1e-5)
