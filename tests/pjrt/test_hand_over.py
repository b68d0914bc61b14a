"""A program of TensorFlow as JAX takes it."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.errors import ConfigError

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.xla
jax.config.update("jax_enable_x64", True)

from accumtrain.pjrt.hand_over import hand_over  # noqa: E402
from accumtrain.pjrt.program import lower  # noqa: E402


@pytest.fixture(scope="module")
def program():
    weight, seen = tf.Variable(tf.ones([3, 3, 2, 4])), tf.Variable(0, dtype=tf.int64)

    def function(batch):
        products = tf.nn.conv2d(batch["inputs"], weight, 1, "SAME")
        seen.assign_add(tf.size(batch["targets"], tf.int64))
        return {"similar": tf.linalg.matmul(products, products, transpose_b=True), "count": tf.identity(seen)}

    image, label = tf.TensorSpec([5, 8, 8, 2], tf.float32), tf.TensorSpec([5], tf.int32)
    return lower(function, [{"inputs": image, "targets": label}], []), weight, seen


def text_of(handed, *arguments):
    return jax.jit(handed.call).lower(*arguments).as_text()


@pytest.mark.parametrize("rounds", [False, True])
def test_products_keep_all_digits_unless_they_may_be_rounded(program, rounds):
    lowered, _, _ = program
    handed = hand_over(lowered.hlo, rounds=rounds)
    text = text_of(handed, *handed.arguments)
    products = [line for line in text.splitlines() if "stablehlo.convolution" in line or "stablehlo.dot" in line]
    assert len(products) == 2
    assert all(("HIGHEST" in line) != rounds for line in products)


def test_variables_are_arguments_and_a_new_value_is_a_result(program):
    lowered, weight, seen = program
    handed = hand_over(lowered.hlo, rounds=False)
    assert lowered.inputs == 2
    assert sorted(map(id, lowered.captured)) == sorted([id(weight), id(seen)])
    place = lowered.inputs + [value is seen for value in lowered.captured].index(True)
    assert handed.updated.keys() == {place}
    assert (handed.results, lowered.outputs.keys()) == (3, {"similar", "count"})
    assert [given.shape for given in handed.arguments[:2]] == [(5, 8, 8, 2), (5,)]
    values = [np.asarray(value) for value in lowered.captured]
    results = jax.jit(handed.call)(np.ones([5, 8, 8, 2], np.float32), np.zeros([5], np.int32), *values)
    assert int(results[handed.updated[place]]) == 5


def test_what_xla_can_not_compile_is_refused():
    with pytest.raises(ConfigError, match="XLA can't compile this model: it has no operation PyFunc; use"):
        lower(lambda x: tf.numpy_function(np.sort, [x], tf.int32), [tf.TensorSpec([3], tf.int32)], [])


def test_the_reason_of_a_refusal_is_the_first_line_of_xla():
    def grows(x):
        def double(i, y):
            return i + 1, tf.concat([y, y], 0)

        shapes = [tf.TensorShape([]), tf.TensorShape([None])]
        return tf.while_loop(lambda i, y: i < 3, double, [tf.constant(0), x], shape_invariants=shapes)

    with pytest.raises(ConfigError) as refused:
        lower(grows, [tf.TensorSpec([3], tf.float32)], [])
    assert str(refused.value) == (
        "device.runtime=jax: XLA can't compile this model: Input and output shapes of loop body do not match: "
        "(s32[], s32[], s32[], f32[3]) vs. (s32[], s32[], s32[], f32[6]); use device.runtime=tensorflow"
    )


def test_an_assertion_of_a_model_is_left_out():
    """As docs/jax.md says."""

    def checked(x):
        tf.debugging.assert_less(x, 0.0)
        return x + 1.0

    handed = hand_over(lower(checked, [tf.TensorSpec([2], tf.float32)], []).hlo, rounds=False)
    np.testing.assert_array_equal(jax.jit(handed.call)(np.zeros([2], np.float32))[0], [1.0, 1.0])
