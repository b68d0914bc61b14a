"""Places of operations: the layer, and whether it computes forward, again, or a gradient."""

from __future__ import annotations

import pytest
import tensorflow as tf

from accumtrain.engine.operation_places import find_places, in_words, operation_of


@pytest.fixture(scope="module")
def places():
    """A loop that multiplies by two kernels, by the first again, and adds the gradient of the second."""
    first, second = tf.Variable(tf.ones([3, 4])), tf.Variable(tf.ones([4, 5]))
    buffer = tf.Variable(tf.zeros([4, 5]))

    @tf.function(autograph=False)
    def micro_steps(x):
        def body(done):
            hidden = tf.nn.relu(tf.matmul(x, first, name="one"), name="active")
            out = tf.matmul(tf.stop_gradient(hidden, name="stopped"), second, name="two")
            again = tf.matmul(x, first, name="once_more")
            tf.matmul(out, out, transpose_b=True, name="of_no_weights")
            tf.nn.relu(again, name="active_again")
            d_out = tf.raw_ops.ReluGrad(gradients=out, features=out, name="first_gradient")
            tf.negative(d_out, name="of_gradient")
            buffer.assign_add(tf.matmul(again, d_out, transpose_a=True, name="of_kernel"))
            return (done + 1,)

        return tf.while_loop(lambda done: done < 2, body, [0])

    traced = micro_steps.get_concrete_function(tf.TensorSpec([2, 3]))
    return find_places(traced, {"a/kernel": first, "b/kernel": second}, {"b/kernel": buffer})


@pytest.mark.parametrize(
    ("operation", "place"),
    [
        ("one", ("forward", "a")),
        ("active", ("forward", "a")),
        ("stopped", ("forward", "a")),
        ("two", ("forward", "b")),
        ("once_more", ("replay", "a")),
        ("of_no_weights", ("forward", "b")),
        ("active_again", ("replay", "a")),
        ("of_gradient", ("gradient", "b")),
        ("first_gradient", ("gradient", "b")),
        ("of_kernel", ("gradient", "b")),
    ],
)
def test_an_operation_is_where_its_weights_are(places, operation, place):
    assert places[f"while/{operation}"] == place


def test_the_profiler_s_name_is_that_of_the_graph():
    assert operation_of("while/body/_1/while/one") == "while/one"
    assert operation_of("resize/Shape") == "resize/Shape"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("segments/1/units/2/f/function/convs/0", "segment 1 unit 2 f conv 0"),
        ("segments/0/layers/0/stems/1/function/norm", "segment 0 0 stem 1 norm"),
        ("", ""),
    ],
)
def test_paths_in_words(path, words):
    assert in_words(path) == words
