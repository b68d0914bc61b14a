"""Your own loop over plain variables: 4 micro-batches of 32 make one update of Adafactor."""

import tensorflow as tf

from accumtrain.keras import Accumulate, Adafactor, load_digits

(x_train, y_train), (x_test, y_test) = load_digits()
y_train, y_test = (tf.cast(y, tf.int64) for y in (y_train, y_test))
x_train, x_test = (tf.reshape(tf.cast(x, tf.float32), [-1, 64]) / 16.0 for x in (x_train, x_test))
tf.random.set_seed(0)


def weights(rows: int, columns: int) -> tf.Variable:
    return tf.Variable(tf.random.normal([rows, columns], stddev=rows**-0.5))


variables = [weights(64, 128), tf.Variable(tf.zeros([128])), weights(128, 10), tf.Variable(tf.zeros([10]))]
optimizer = Accumulate(Adafactor(), steps=4)
optimizer.build(variables)


def logits(images: tf.Tensor) -> tf.Tensor:
    w1, b1, w2, b2 = variables
    return tf.nn.relu(images @ w1 + b1) @ w2 + b2


@tf.function
def micro_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(images)))
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


data = (
    tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train), seed=0).batch(32, drop_remainder=True)
)
for epoch in range(20):
    for images, labels in data:
        loss = micro_step(images, labels)
    optimizer.flush()  # an update from the micro-batches that are left; drop() would forget them
    right = tf.argmax(logits(x_test), axis=1) == y_test
    accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
    print(f"epoch {epoch + 1:2}  updates {int(optimizer.iterations)}  loss {loss:.4f}  val accuracy {accuracy:.4f}")
