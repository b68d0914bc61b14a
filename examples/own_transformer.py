"""A transformer of your own in one file, reversible to the bit, with the mask of padded texts.

Attention sees no padding: the model puts the mask of its inputs beside the streams, and any layer reads it there.

    python examples/own_transformer.py model=mine data=table data.path=reviews.jsonl data.text_column=text run.name=mine
    python examples/own_transformer.py model=mine data=table data.path=reviews.jsonl data.text_column=text job=memory
    python examples/own_transformer.py model=mine data=table data.path=reviews.jsonl data.text_column=text job=verify
"""

from dataclasses import dataclass

import accumtrain  # before TensorFlow, whose log lines it hides

# isort: split
import tensorflow as tf


@dataclass(kw_only=True)
class MineConfig(accumtrain.ReversibleConfig):
    """A text encoder whose MLPs are gated.

    `depth`: number of blocks.
    `width`: channels of each token.
    """

    kind: str = "mine"
    depth: int = 4
    width: int = 64

    @property
    def least_micro_batch(self):  # of models without batch norm
        return 1


class Linear(tf.Module):
    def __init__(self, init, inputs, outputs):
        super().__init__()
        self.kernel = init.dense((inputs, outputs))

    def __call__(self, x):
        return tf.einsum("ntc,cd->ntd", x, tf.cast(self.kernel, x.dtype))


class Norm(tf.Module):
    def __init__(self, init, width):
        super().__init__()
        self.gamma = init.constant(1.0, width, "gamma")

    def __call__(self, x):
        return x * tf.math.rsqrt(tf.reduce_mean(x * x, axis=-1, keepdims=True) + 1e-6) * self.gamma


class Attention(tf.Module):
    def __init__(self, init, width):
        super().__init__()
        self.norm, self.linear = Norm(init, width), Linear(init, width, 3 * width)

    def __call__(self, x, mode):
        queries, keys, values = tf.split(self.linear(self.norm(x)), 3, axis=-1)
        scores = tf.matmul(queries, keys, transpose_b=True) * tf.cast(x.shape[-1] ** -0.5, x.dtype)
        hidden = tf.where(mode.side["mask"], 0.0, -1e9)[:, tf.newaxis, :]
        return tf.matmul(tf.nn.softmax(scores + tf.cast(hidden, x.dtype)), values)


class GatedMLP(tf.Module):
    def __init__(self, init, width):
        super().__init__()
        self.norm, self.up = Norm(init, width), Linear(init, width, 4 * width)
        self.down = Linear(init, 2 * width, width)

    def __call__(self, x, mode):
        values, gates = tf.split(self.up(self.norm(x)), 2, axis=-1)
        return self.down(values * tf.sigmoid(gates))


class Embed(tf.Module):
    def __init__(self, init, vocabulary, tokens, width):
        super().__init__()
        self.table = init.normal((vocabulary, width), 0.02, "embedding")
        self.positions = init.normal((tokens, width), 0.02, "positions")

    def __call__(self, tokens, mode):
        table = tf.convert_to_tensor(self.table)  # a sparse read would let every later read copy the table
        return tf.gather(table, tf.maximum(tokens, 0)) + self.positions[: tf.shape(tokens)[1]]


class Head(tf.Module):
    def __init__(self, init, width, classes):
        super().__init__()
        self.norm, self.linear = Norm(init, width), Linear(init, width, classes)

    def __call__(self, x, mode):
        shown = tf.cast(mode.side["mask"], x.dtype)[..., tf.newaxis]
        mean = tf.reduce_sum(self.norm(x) * shown, axis=1, keepdims=True) / tf.reduce_sum(shown, axis=1, keepdims=True)
        return self.linear(mean)[:, 0]


def split_inputs(tokens):
    return tokens, {"mask": tokens >= 0}


def build(config, spec):
    (tokens,), init, width, bits = spec.shape, spec.init, config.width, config.snap_bits
    units = [accumtrain.couple(Attention(init, width), GatedMLP(init, width), bits) for _ in range(config.depth)]
    embed, head = Embed(init, spec.vocabulary, tokens, width), Head(init, 2 * width, spec.num_classes)
    segments = [
        accumtrain.Chain("store", [embed, accumtrain.TwoStreams(bits)]),
        accumtrain.Stage(config.policy, units),
        accumtrain.Chain("store", [accumtrain.JoinStreams(bits), head]),
    ]
    return accumtrain.Model(segments, spec.compute_dtype, split_inputs)


accumtrain.register_model("mine", build, MineConfig)

if __name__ == "__main__":
    accumtrain.main()
