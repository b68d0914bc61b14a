"""The faults that job=verify must find: each pullback, statistic, sum, scale, slot and order."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from accumtrain.backprop import kernels, replay, segments, tape
from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.segments import Coupling, OnStreams
from accumtrain.engine import losses, window
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.norm_statistics import NormStatistics
from accumtrain.engine.window import Window
from accumtrain.models import layers, norms
from accumtrain.models.layers import Bias, Conv
from accumtrain.models.norms import BatchNorm, GroupNorm
from accumtrain.models.resnet import blocks
from accumtrain.models.resnet.blocks import PoolAndPad, Projection, Residual
from accumtrain.models.resnet.revnet import Stems
from accumtrain.models.transformers import activations, attention, build
from accumtrain.models.transformers.attention import Attention
from accumtrain.models.transformers.layers import LayerNorm, Linear
from accumtrain.optim import adafactor, adam, schedules, sgd
from accumtrain.optim.adafactor import AdafactorRule
from accumtrain.optim.adam import Adam, AdamW
from accumtrain.optim.keras_optimizer import KerasOptimizer
from accumtrain.optim.optimizer import Optimizer, Parameter
from accumtrain.optim.running_mean import HalfLife
from accumtrain.tasks import classify
from tests.planted.plant import Fault, argument, gradients, input_gradient, result

SGD = ("optim=sgd", "optim.weight_decay=0.01")
LENET = ("model=lenet5", *SGD)
TEXT = ("model=revencoder_tiny", "model.depth=2", "model.width=16", "model.heads=2", "data=table",
        "data.path=texts.jsonl", "data.text_column=text", "data.length=12", *SGD)  # fmt: skip
PUBLISHED = ("model=pretrained", "model.path=bert", "model.dropout=0", "data.tokenizer=bert", *TEXT[4:])
DECODER = ("task=next_token", "model=pretrained", "model.path=gpt2", "model.dropout=0", "data.tokenizer=gpt2",
           *TEXT[4:])  # fmt: skip
VIT = ("model=revvit_tiny", "model.patch=2", "model.depth=2", "model.width=16", "model.heads=2", *SGD)
RESNET = ("model=resnet20", "model.units=[1,1]", "model.filters=[8,8,16]", *SGD)
REVNET = ("model=revnet38", "model.units=[2,1]", "model.filters=[8,8,16]", *SGD)
GROUP = (*REVNET, "model.norm=group")
KERAS_MODEL = ("model=keras", "model.name=MobileNet", "model.args={alpha:0.25}")
MOBILENET = (*KERAS_MODEL, "data=synthetic", "data.image_size=32", *SGD)
BOTTLENECK = ("model=revnet38", "model.bottleneck=true", "model.units=[1,1]", "model.filters=[16,16,32]", *SGD)
COSINE = (*LENET, "schedule=cosine", "schedule.warmup=5")
AVERAGED = (*LENET, "ema.decay=0.999")
ADAM, ADAMW, ADAFACTOR, KERAS = (("model=lenet5", f"optim={kind}") for kind in ("adam", "adamw", "adafactor", "keras"))


def scaled(factor: float):  # type: ignore[no-untyped-def]
    return lambda value: tf.nest.map_structure(lambda each: each * tf.cast(factor, each.dtype), value)


def each_scaled(factor: float):  # type: ignore[no-untyped-def]
    return lambda found: [(variable, value * tf.cast(factor, value.dtype)) for variable, value in found]


def only(kind: str, change):  # type: ignore[no-untyped-def]
    """Change the gradients of the variables of this name."""
    return lambda found: [
        (variable, change(value) if variable.name.startswith(kind) else value) for variable, value in found
    ]


def swapped_slots(right):  # type: ignore[no-untyped-def]
    """The gradients of the first two variables of one shape go to each other's buffer."""

    def add(self, found):  # type: ignore[no-untyped-def]
        shapes = [variable.shape for variable in self.variables_]
        first = next(place for place, shape in enumerate(shapes) if shapes.count(shape) > 1)
        second = shapes.index(shapes[first], first + 1)
        pair = {self.variables_[first].ref(): self.variables_[second], self.variables_[second].ref(): None}
        pair[self.variables_[second].ref()] = self.variables_[first]
        return right(self, [(pair.get(variable.ref(), variable), value) for variable, value in found])

    return add


def assigned(right):  # type: ignore[no-untyped-def]
    """The buffers keep the last micro-batch only."""

    def add(self, found):  # type: ignore[no-untyped-def]
        slots = [(self._slot[variable.ref()], value) for variable, value in found]
        return [buffer.assign(tf.cast(value, buffer.dtype)) for buffer, value in slots]

    return add


def without_offset(right):  # type: ignore[no-untyped-def]
    """Add the moving mean in place of the mean of each micro-batch."""

    def add(self, found, examples):  # type: ignore[no-untyped-def]
        return right(self, {n: (n.moving_mean + 0.0 * mean, v) for n, (mean, v) in found.items()}, examples)

    return add


def reversed_momentum(right):  # type: ignore[no-untyped-def]
    def init(self, norms, new_sum):  # type: ignore[no-untyped-def]
        right(self, norms, new_sum)
        if self.norms:
            self._blend = 1.0 - self._blend

    return init


def clipped_to_twice(right):  # type: ignore[no-untyped-def]
    def init(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        right(self, *args, **kwargs)
        self.clip_norm *= 2.0

    return init


def schedule_read_late(right):  # type: ignore[no-untyped-def]
    def init(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        right(self, *args, **kwargs)
        in_time = self.schedule
        self.schedule = lambda step: in_time(step + 1)

    return init


def twice(right):  # type: ignore[no-untyped-def]
    def call(*args):  # type: ignore[no-untyped-def]
        right(*args)
        return right(*args)

    return call


def other_place(right):  # type: ignore[no-untyped-def]
    """A replay draws other random numbers."""

    def other(self):  # type: ignore[no-untyped-def]
        mode = right(self)
        mode.draws = (lambda number: 1.0 - self.draws(number)) if self.draws else None
        return mode

    return other


def without_replayed_value(right):  # type: ignore[no-untyped-def]
    return lambda stream, value, in_place: stream if in_place else right(stream, value)


def gradients_twice(right):  # type: ignore[no-untyped-def]
    return lambda pair, consume: right((pair[0], [(v, 2.0 * g) for v, g in pair[1]]), consume)


def reversed_list(found):  # type: ignore[no-untyped-def]
    """Gradients of equal shapes change places."""
    variables, values = zip(*found, strict=True)
    return list(zip(variables, values[::-1], strict=True)) if values[0].shape == values[-1].shape else found


FAULTS = [
    # pullbacks
    Fault("1x1 kernel gradient x 1.1", kernels, "kernel_gradient_by_products", result(scaled(1.1)), BOTTLENECK),
    Fault("kernel gradient x 1.001", layers, "kernel_gradient", result(scaled(1.001)), RESNET),
    Fault("kernel gradient negated", layers, "kernel_gradient", result(scaled(-1.0)), REVNET),
    Fault("input gradient of a convolution x 1.01", Conv, "_input_gradient", result(scaled(1.01)), RESNET),
    Fault("input gradient of a convolution transposed", Conv, "_input_gradient",
          result(lambda d_x: tf.reverse(d_x, [1])), REVNET),
    Fault("gamma's gradient doubled", BatchNorm, "pullback", gradients(only("gamma", scaled(2.0))), RESNET),
    Fault("beta's gradient missing", BatchNorm, "pullback", gradients(only("beta", tf.zeros_like)), REVNET),
    Fault("gamma's and beta's gradients swapped", BatchNorm, "pullback", gradients(reversed_list), RESNET),
    Fault("input gradient of batch norm x 1.3", BatchNorm, "pullback", input_gradient(scaled(1.3)), RESNET),
    Fault("batch norm: a hundredth without its gradient", BatchNorm, "_in_float64",
          result(lambda found: (found[0] + 0.01 * tf.stop_gradient(found[0]), *found[1:])), RESNET),
    Fault("input gradient in parts x 1.01", norms, "norm_gradient",
          result(lambda found: (1.01 * found[0], *found[1:])), REVNET),
    Fault("gamma's gradient in parts x 1.1", norms, "norm_gradient",
          result(lambda found: (found[0], 1.1 * found[1], found[2])), REVNET),
    Fault("group norm's replay x 1.01", GroupNorm, "pullback", input_gradient(scaled(1.01)), GROUP),
    Fault("a residual function's gradients dropped", Residual, "pullback",
          gradients(lambda found: [(variable, tf.zeros_like(value)) for variable, value in found]), RESNET),
    Fault("a projection's input gradient dropped", Projection, "pullback", input_gradient(tf.zeros_like), BOTTLENECK),
    Fault("a shortcut stops half of the gradient", PoolAndPad, "_pool_and_pad",
          result(lambda x: 0.5 * x + tf.stop_gradient(0.5 * x)), REVNET),
    Fault("the second stem's gradients dropped", Stems, "pullback",
          gradients(lambda found: [(v, value * (place < len(found) // 2)) for place, (v, value) in enumerate(found)]),
          REVNET),
    Fault("a stem's pass differs from its replay", OnStreams, "pullback", input_gradient(scaled(0.9)), REVNET),
    Fault("a bias's gradient stopped", Bias, "__call__",
          lambda right: lambda self, x: x + tf.stop_gradient(tf.cast(self.bias, x.dtype)), LENET),
    Fault("gradient of the loss doubled", tape, "gradient",
          argument(2, lambda loss: lambda logits: 2.0 * loss(logits)), RESNET),
    # reversal and order
    Fault("a unit's two streams swapped in reverse", Coupling, "reverse",
          result(lambda pair: (pair[0], pair[1][::-1])), REVNET),
    Fault("F's gradient left out in reverse", segments, "add", without_replayed_value, REVNET),
    Fault("subtraction off by the last bit of a stream", FixedPoint, "subtract",
          lambda right: lambda self, x, value: self.add(right(self, x, value), tf.ones_like(value)), REVNET),
    Fault("values rounded, not cut off, in the reversal", FixedPoint, "subtract",
          lambda right: lambda self, x, value: right(self, x, tf.round(value)), REVNET),
    Fault("streams read times 1.001 in pullbacks", FixedPoint, "read", result(scaled(1.001)), REVNET),
    Fault("a sum of streams, not in place, loses 8 bits", FixedPoint, "add",
          lambda right: lambda self, x, value, *, in_place=False: right(
              self, x, value if in_place else 256.0 * tf.round(value / 256.0), in_place=in_place), REVNET),
    Fault("streams of 6 bits more than their range has", FixedPoint, "scale",
          result(lambda scale: 64.0 * scale if scale > 1.0 else scale), REVNET),
    Fault("the factor of a stream left out of its statistics", BatchNorm, "_normalise",
          lambda right: lambda self, *rest: right(self, *rest[:-1], 1.0), REVNET),
    Fault("a replay draws other numbers", Mode, "replay", other_place, (*REVNET, "model.drop_path=0.5")),
    Fault("stochastic depth's gradient without its factor", blocks.DropPath, "pullback",
          lambda right: lambda self, x, mode: (right(self, x, mode)[0], lambda d_y: (d_y, [])),
          (*RESNET, "model.drop_path=0.5")),
    Fault("a replay's gradients twice", replay, "_consume_first", gradients_twice, REVNET),
    Fault("a replay's gradients twice, of a Keras model", replay, "_consume_first", gradients_twice, MOBILENET),
    # transformers
    Fault("attention: the scores' gradient without its mean", attention, "_score_gradient",
          lambda right: lambda share, d_share, mean: share * d_share, VIT),
    Fault("attention: input gradient x 1.01", Attention, "pullback", input_gradient(scaled(1.01)), VIT),
    Fault("attention: a replay attends otherwise", Attention, "pullback",
          lambda right: lambda self, x, mode: right(self, x * 1.01 if mode.replaying else x, mode), VIT),
    Fault("layer norm: input gradient x 1.01", LayerNorm, "pullback", input_gradient(scaled(1.01)), VIT),
    Fault("layer norm: gamma's and beta's gradients swapped", LayerNorm, "pullback", gradients(reversed_list), VIT),
    Fault("a linear layer's bias without a gradient", Linear, "pullback",
          gradients(only("bias", tf.zeros_like)), VIT),
    Fault("GELU's slope without the density", activations, "DENSITY_AT_0", lambda right: 0.0, VIT),
    Fault("a replay forgets the mask", Mode, "replay", result(lambda mode: mode.with_side({})), TEXT),
    Fault("padding has a part in attention's gradient", Attention, "pullback",
          lambda right: lambda self, x, mode: (
              right(self, x, mode)[0], right(self, x, mode.with_side({}))[1]), TEXT),
    # published models
    Fault("a published model sees padding", Mode, "with_side",
          lambda right: lambda self, side: right(self, {}), PUBLISHED),
    Fault("a token sees the next one", Attention, "_hidden_scores",
          result(lambda hidden: tf.concat([hidden[..., 1:, :], hidden[..., -1:, :]], axis=-2)), DECODER),
    Fault("documents of a packed row see each other", Attention, "_hidden_scores",
          argument(3, lambda mode: mode.with_side({})), DECODER),
    Fault("places of a packed row run on from document to document", build, "_places",
          lambda right: lambda documents: tf.zeros_like(documents) + tf.range(tf.shape(documents)[1]), DECODER),
    # the loss
    Fault("labels + 1", losses, "class_index", result(lambda labels: (labels + 1) % 10), LENET),
    Fault("label smoothing twice as strong", classify, "build_cross_entropy",
          argument(0, lambda config: type(config)(label_smoothing=2 * config.label_smoothing)),
          (*LENET, "loss.label_smoothing=0.1")),
    Fault("class weights ignored", classify, "build_cross_entropy", argument(0, lambda config: type(config)()),
          (*LENET, "loss.class_weights=[3,2,3,2,3,2,3,2,3,2]")),
    Fault("loss x 1.001", classify, "cross_entropy", result(scaled(1.001)), LENET),
    Fault("loss of the mixed label left out", losses, "_value",
          lambda right: lambda function, logits, batch: function(batch["targets"], logits), (*LENET, "data.mixup=0.4")),
    # sums and scales of a window
    Fault("examples + 1e-3", window, "example_weights", result(lambda value: value + 1e-3 / 4), LENET),
    Fault("examples twice", window, "example_weights", result(scaled(2.0)), LENET),
    Fault("buffers keep the last micro-batch", Window, "_add_gradients", assigned, LENET),
    Fault("two variables' gradients swapped", Window, "_add_gradients", swapped_slots, RESNET),
    Fault("gradients in bfloat16", Window, "_add_gradients",
          argument(1, lambda found: [(v, tf.cast(tf.cast(g, tf.bfloat16), g.dtype)) for v, g in found]), LENET),
    Fault("norm of the gradient x 1.001", Window, "commit",
          result(lambda scalars: {**scalars, "grad_norm": 1.001 * scalars["grad_norm"]}), LENET),
    Fault("clipping to twice the norm", Window, "__init__", clipped_to_twice, (*LENET, "optim.clip_norm=0.1")),
    Fault("adaptive clipping twice as wide", window, "clip_by_weight",
          lambda right: lambda g, w, share: right(g, w, 2.0 * share), (*LENET, "optim.adaptive_clip=0.001")),
    # statistics
    Fault("variance between micro-batches left out", NormStatistics, "add", without_offset, RESNET),
    Fault("momentum of the statistics reversed", NormStatistics, "__init__", reversed_momentum, RESNET),
    Fault("unbiased variance recorded", norms, "_unbiased_to_biased", lambda right: lambda x, dtype, mode: 1.0, RESNET),
    Fault("recorded mean x 1.05", Mode, "record",
          lambda right: lambda self, layer, mean, variance: right(self, layer, mean * 1.05, variance), RESNET),
    # slots and rules of optimizers
    Fault("Adam without bias correction", adam, "_bias_correction", lambda right: lambda beta, t: tf.ones_like(t),
          ADAM),
    Fault("Adam's epsilon x 1e4", Adam, "__init__",
          lambda right: lambda self, *args, **kwargs: right(self, *args, **{**kwargs, "epsilon": 1e-4}),
          ADAM),
    Fault("a half-life of half as many examples", HalfLife, "share", result(lambda share: share**2),
          (*ADAM, "optim.half_life=30")),
    Fault("AdamW decays by L2", AdamW, "decoupled_decay", lambda right: False, (*ADAMW, "optim.weight_decay=0.1")),
    Fault("decay twice", Optimizer, "_decay", twice, (*ADAMW, "optim.weight_decay=0.1")),
    Fault("no Nesterov", sgd.SGD, "__init__",
          lambda right: lambda self, *args, **kwargs: right(self, *args, **{**kwargs, "nesterov": False}),
          (*LENET, "optim.nesterov=true")),
    Fault("momentum 0.99", sgd.SGD, "__init__",
          lambda right: lambda self, *args, **kwargs: right(self, *args, **{**kwargs, "momentum": 0.99}), LENET),
    Fault("rates of patterns ignored", Parameter, "rate",
          lambda right: lambda self, rate: tf.cast(rate, self.variable.dtype),
          (*LENET, "optim.rates={segments/0/*:0.1}")),
    Fault("Adafactor: beta2 of the next update", AdafactorRule, "_blend", argument(1, lambda t: t + 1.0),
          ADAFACTOR),
    Fault("Adafactor: RMS of the weight x 1.01", adafactor, "_rms", result(scaled(1.01)), ADAFACTOR),
    Fault("Adafactor: momentum the other way", adafactor, "_average",
          argument(2, lambda blend: 1.0 - blend if isinstance(blend, float) else blend),
          (*ADAFACTOR, "optim.momentum=0.9", "optim.momentum_of=update")),
    Fault("Keras's optimizer: one update behind", KerasOptimizer, "apply",
          lambda right: lambda self, g, rate, step, scale=1.0: right(self, g, rate, step + 1, scale),
          (*KERAS, "optim.name=Nadam", "optim.lr=1e-3")),
    Fault("Keras's optimizer: no decay", KerasOptimizer, "_decay", lambda right: lambda self, weight, rate: None,
          (*KERAS, "optim.name=Lion", "optim.lr=1e-3", "optim.weight_decay=0.1")),
    # rates and averages
    Fault("the schedule read one update late", Window, "__init__", schedule_read_late, COSINE),
    Fault("a warm-up longer by one update", schedules.ScheduleConfig, "build",
          argument(0, lambda config: replace(config, warmup=config.warmup + 1)), COSINE),
    Fault("a cosine of twice the length", schedules, "_half_cosine", argument(0, lambda progress: progress / 2.0),
          COSINE),
    Fault("rate x 1.00001", Optimizer, "learning_rate", result(scaled(1.00001)), LENET),
    Fault("Adafactor: relative step of the next update", AdafactorRule, "relative_step",
          argument(1, lambda step: step + 1), (*ADAFACTOR, "optim.lr=null", "optim.warmup_init=true")),
    Fault("the average's decay 0.99 for 0.999", MovingAverage, "__init__", argument(2, lambda decay: 0.99), AVERAGED),
    Fault("the average counts from the next update", MovingAverage, "update", argument(1, lambda step: step + 1),
          AVERAGED),
    Fault("the average keeps the share of the weight", MovingAverage, "_blend",
          lambda right: staticmethod(lambda variables, share: right(variables, 1.0 - share)), AVERAGED),
    Fault("the average is never updated", MovingAverage, "update", lambda right: lambda self, step: None, AVERAGED),
]  # fmt: skip

assert len({fault.name for fault in FAULTS}) == len(FAULTS)
