"""A linear layer with cross-entropy, forward and backward, in TensorFlow."""

from __future__ import annotations

from linear_sizes import sizes_parser
from turns import Turns

parser = sizes_parser()
parser.add_argument("--how", choices=("plain", "chunks", "layer"), required=True)
parser.add_argument("--share", type=int, default=1)
options = parser.parse_args()
turns = Turns(units=1)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from accumtrain.backprop import linear_logits  # noqa: E402
from accumtrain.backprop.linear_logits import LinearLogits  # noqa: E402
from accumtrain.engine.losses import cross_entropy, loss_and_sums  # noqa: E402
from accumtrain.keras import LinearCrossEntropy  # noqa: E402

linear_logits.SHARE_OF_KERNEL = options.share
size = (options.tokens, options.channels)
hidden = tf.random.stateless_normal(size, [0, 0])
kernel = tf.Variable(0.02 * tf.random.stateless_normal([options.channels, options.words], [0, 1]))
targets = tf.random.stateless_uniform([options.tokens], [0, 2], 0, options.words, tf.int32)
policy = "mixed_bfloat16" if options.precision == "bfloat16" else "float32"
layer = LinearCrossEntropy(options.words, use_bias=False, dtype=policy)
if options.how == "layer":
    layer.build(size)
    layer.kernel.assign(kernel)
    kernel = layer.kernel.value


def compute_loss() -> tf.Tensor:
    if options.how == "layer":
        return tf.reduce_sum(layer(hidden, targets))
    logits = LinearLogits(hidden, tf.convert_to_tensor(kernel), None, tf.as_dtype(options.precision))
    outputs = logits.logits if options.how == "plain" else logits
    loss, _ = loss_and_sums([cross_entropy], outputs, {"targets": targets}, 1.0)
    return loss


@tf.function(autograph=False)
def differentiate() -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        loss = compute_loss()
    return [loss, *tape.gradient(loss, [hidden, kernel])]


def bytes_of(kind: str) -> int:
    return tf.config.experimental.get_memory_info("CPU:0")[kind]


keras.utils.set_random_seed(0)
while turns.next():
    known = bytes_of("current")
    tf.config.experimental.reset_memory_stats("CPU:0")
    results = differentiate()
    results[0].numpy()
    turns.stop()
    own = sum(result.dtype.size * result.shape.num_elements() for result in results)
    turns.done(bytes_beyond=bytes_of("peak") - known - own)
    del results
