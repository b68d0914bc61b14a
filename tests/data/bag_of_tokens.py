"""A program with a model of texts: the mean of the embeddings of the tokens, then a layer."""

from typing import Any

import accumtrain  # before TensorFlow, whose log lines it hides

# isort: split
import tensorflow as tf


class Bag(tf.Module):
    def __init__(self, init: Any, size: int) -> None:
        super().__init__()
        self.table = init.dense((size, 16))

    def __call__(self, tokens: Any, mode: Any) -> Any:
        known = tf.cast(tokens >= 0, self.table.dtype)[..., None]
        rows = tf.gather(self.table, tf.maximum(tokens, 0)) * known
        return tf.reduce_sum(rows, axis=1) / tf.reduce_sum(known, axis=1)


class Head(tf.Module):
    def __init__(self, init: Any, classes: int) -> None:
        super().__init__()
        self.kernel = init.dense((16, classes))

    def __call__(self, x: Any, mode: Any) -> Any:
        return x @ self.kernel


def build_bag(config: Any, spec: Any) -> Any:
    chain = accumtrain.Chain(config.policy, [Bag(spec.init, 300), Head(spec.init, spec.num_classes)])
    return accumtrain.Model([chain], spec.compute_dtype)


accumtrain.register_model("bag", build_bag)

if __name__ == "__main__":
    accumtrain.main()
