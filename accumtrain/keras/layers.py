"""Layers that keep fewer activations: `Reversible`, `ReversibleSequence`, `recompute`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import keras
import tensorflow as tf

from accumtrain.backprop.config import SNAP_BITS
from accumtrain.backprop.fixed_point import FixedPoint, fingerprint_streams, times
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.replay import Consume, replay
from accumtrain.backprop.segments import Coupling, OnStreams
from accumtrain.backprop.tracing import after, is_for_xla, on_cpu
from accumtrain.keras.pure_layer import Backward, LayerVariables, PureLayer, with_own_gradient
from accumtrain.models.keras.call import mask_of, set_mask

TRAINING = inspect.Parameter("training", inspect.Parameter.KEYWORD_ONLY, default=None)
POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
Pair = tuple[keras.layers.Layer, keras.layers.Layer]


# --- recomputation ----------------------------------------------------------------------------------------------------


def recompute(layer: keras.layers.Layer, **kwargs: Any) -> Recompute:
    """Return a layer that computes what `layer` does, and keeps only its input (Chen et al. 2016, arXiv:1604.06174).

    It saves the memory that keras.remat (tf.recompute_grad) saves. Unlike there, the gradient is that of `layer`: the
    statistics of batch norm are updated once, and dropout keeps its mask. Masks and keyword arguments work in graphs,
    too.

    Args:
        layer: a Keras layer or model. The returned layer takes the same arguments, and masks pass through it.
        kwargs: `name` and `trainable`, as of any Keras layer.

    Raises:
        ValueError: `layer` is no Keras layer.
    """
    return Recompute(layer, **kwargs)


@keras.saving.register_keras_serializable(package="accumtrain")
class Recompute(keras.layers.Wrapper):
    """The layer that `recompute` returns. Arguments and results are those of `layer`, with shapes, dtypes and masks."""

    def __init__(self, layer: keras.layers.Layer, **kwargs: Any):
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"layer={layer!r} is not a Keras layer; wrap a function in keras.layers.Lambda")
        self.call = with_parameters(self._run, parameters_of(layer).values())
        super().__init__(layer, **{**kwargs, "dtype": layer.variable_dtype, "autocast": False})
        self.supports_masking = layer.supports_masking

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.layer.built:  # Keras would hand `build` the shape of the first argument only
            with keras.name_scope(self.name, caller=self):
                self.layer(*keras.tree.map_structure(_spec, args), **keras.tree.map_structure(_spec, kwargs))
        return super().__call__(*args, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        if not self.layer.built:
            dtype = self.layer.compute_dtype
            self.layer(keras.tree.map_shape_structure(lambda shape: keras.KerasTensor(shape, dtype), input_shape))

    def _run(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        tensors, pack = flatten_with_masks((args, kwargs))
        pack_results: Any = None

        def results(y: Any) -> list[tf.Tensor]:
            nonlocal pack_results
            flat, pack_results = flatten_with_masks(y)
            return flat

        values = LayerVariables([self.layer])
        call = PureLayer(self.layer, values, training, lambda x, _: pack(x), results)
        mode = Mode(training=bool(training))

        def forward(tensors: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor], Backward]:
            def backward(x: list[tf.Tensor], d_y: list[tf.Tensor], consume: Consume) -> list[tf.Tensor | None]:
                _, d_x, _ = replay(call, x, d_y, mode, consume)
                return d_x

            return call(tensors, mode), tensors, backward

        outputs = with_own_gradient(forward, tensors, values, [call])
        values.hand_over(self)
        return pack_results(outputs)

    def compute_output_spec(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        return self.layer.compute_output_spec(*args, **kwargs)

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer.compute_output_shape(*args, **kwargs)

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return self.layer.compute_mask(inputs, previous_mask)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return {key: value for key, value in config.items() if key != "dtype"}


def _spec(argument: Any) -> Any:
    """Return the shape and dtype of an array or a tensor, and anything else as it is."""
    if hasattr(argument, "shape") and hasattr(argument, "dtype"):
        return keras.KerasTensor(argument.shape, keras.backend.standardize_dtype(argument.dtype))
    return argument


# --- reversible units -------------------------------------------------------------------------------------------------


class ReversibleLayer(keras.layers.Layer):
    """The base of `Reversible` and `ReversibleSequence`: two streams, joined in one tensor or apart.

    In training the streams are integers in the memory of float32, or of float64 under the policy float64
    (backprop/fixed_point.py), whatever the layers inside compute in. Evaluations use floats, and their gradients the
    stored activations. The output is floats, too, and what they round off is kept for the backward pass. A stream keeps
    its mask, which the layers get with it. The call takes the keywords of the layers inside, too, and hands each layer
    those that it takes.

    Args:
        layers: all layers inside.
        snap_bits: bits of the integers behind the point; 0 stands for floats.
        memory: `reverse` keeps the output, `store` all activations.
    """

    def __init__(
        self,
        layers: Iterable[keras.layers.Layer],
        *,
        snap_bits: int,
        memory: str,
        dtype: Any = None,
        **kwargs: Any,
    ):
        own = inspect.signature(self._run).parameters.values()
        positional = [parameter for parameter in own if parameter.kind in POSITIONAL]
        keywords = [parameter for layer in layers for parameter in _keywords(layer)]
        self.call = with_parameters(self._run, [*positional, *keywords])
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        wide = policy.variable_dtype == "float64"
        super().__init__(dtype="float64" if wide else "float32", autocast=False, **kwargs)
        FixedPoint(snap_bits)  # raises ValueError
        if memory not in ("reverse", "store"):
            raise ValueError(f"memory={memory!r} is neither 'reverse' nor 'store'; use 'reverse' to save memory")
        self.snap_bits, self.memory = snap_bits, memory
        self.supports_masking = True
        self.supports_jit = not on_cpu()  # else `fit` would compile with XLA, which is slower there and not exact

    @property
    def pairs(self) -> list[Pair]:
        """The layers (f, g) of each unit."""
        raise NotImplementedError

    def build(self, input_shape: Any) -> None:
        shapes = _stream_shapes(self.name, input_shape)
        for f, g in self.pairs:
            for name, layer, stream in (("f", f, shapes[1]), ("g", g, shapes[0])):
                spec = keras.KerasTensor(stream, self.compute_dtype)
                output = layer(*_for_each_required(layer, spec))  # builds it, too
                if getattr(output, "shape", None) != stream:
                    raise ValueError(
                        f"{name}={layer.name} makes {getattr(output, 'shape', output)} of {stream}, but a sum with the "
                        "other stream needs the shape of its input; end it with a layer that restores this shape"
                    )

    def _run(self, inputs: Any, mask: Any = None, training: bool | None = None, **keywords: Any) -> Any:
        _disable_rewrites()
        tensors = tf.nest.flatten(inputs)
        masks = [mask_of(tensor) for tensor in tensors] if mask is None else tf.nest.flatten(mask)
        shared, pack = flatten_with_masks((masks, keywords))
        masks, keywords = pack(shared)  # tensors in the place of variables
        mask_of_x1, mask_of_x2 = _masks_of_streams(masks)
        variables = LayerVariables((layer for pair in self.pairs for layer in pair), shared)
        mode = Mode(training=bool(training))
        reverses = self.memory == "reverse" and mode.training  # floats of an evaluation can't be reversed to the bit
        dtype, numbers = tf.as_dtype(self.compute_dtype), FixedPoint(self.snap_bits).for_mode(mode)
        on_stream = partial(_call_on_stream, numbers=numbers, keywords=keywords, values=variables, training=training)
        calls = [(on_stream(f, mask_of_x2), on_stream(g, mask_of_x1)) for f, g in self.pairs]
        added = partial(OnStreams, numbers=numbers, dtype=dtype, scales=False)
        units = [Coupling(added(f), added(g), numbers=numbers, checks_range=True) for f, g in calls]

        def forward(tensors: list[tf.Tensor]) -> tuple[list[tf.Tensor], list[tf.Tensor], Backward]:
            scaled = (times(tf.cast(x, dtype), numbers.scale(dtype)) for x in _split_streams(tensors))
            streams: Streams = tuple(map(numbers.differentiable_encode, scaled))
            reach = [numbers.reach(streams)] if numbers.bits else [tf.zeros([])]
            streams, fingerprint = fingerprint_streams(streams) if reverses else (streams, None)
            begin = tf.zeros([]) if fingerprint is None else fingerprint
            for unit in units:
                streams = unit(streams, mode)
            values = [numbers.differentiable_read(stream) for stream in streams]
            joined = len(tensors) == 1
            outputs = [tf.concat(values, axis=-1)] if joined else values
            dtypes = [tensor.dtype for tensor in tensors]

            def backward(kept: list[tf.Tensor], d_y: list[tf.Tensor], consume: Consume) -> list[tf.Tensor | None]:
                *d_y, _ = d_y
                *y, rest1, rest2, begin = after(d_y, kept)
                streams: Streams = tuple(map(numbers.restore, _split_streams(y), (rest1, rest2)))
                d_streams = _split_streams(d_y)
                for unit in reversed(units):
                    streams, d_streams = unit.reverse(None, streams, d_streams, mode, consume)
                if numbers.bits:
                    d_streams = self._of_the_beginning(d_streams, streams, begin)
                d_x = [tf.concat(d_streams, axis=-1)] if joined else d_streams
                return [tf.cast(gradient, dtype) for gradient, dtype in zip(d_x, dtypes, strict=True)]

            rests = [numbers.rest(stream) for stream in streams]  # others keep the output, too
            return [*outputs, tf.reduce_max([*reach, *mode.reach])], [*outputs, *rests, begin], backward

        if reverses:
            *outputs, reach = with_own_gradient(forward, tensors, variables, [call for pair in calls for call in pair])
        else:
            (*outputs, reach), _, _ = forward(tensors)
        variables.hand_over(self)
        outputs = self._in_range(outputs, reach) if numbers.bits else outputs
        for output, stream_mask in zip(outputs, (mask_of_x1, mask_of_x2), strict=False):  # one, if joined
            set_mask(output, stream_mask)
        return tf.nest.pack_sequence_as(inputs, outputs)

    def _in_range(self, outputs: list[tf.Tensor], reach: tf.Tensor) -> list[tf.Tensor]:
        """Return the outputs. Fail where a stream has left its range; for XLA, which has no assertions, return NaN.

        Args:
            reach: the largest magnitude in the streams as a share of their limit, float32 [].
        """
        in_range = reach < 1
        if is_for_xla():
            factor = tf.stop_gradient(tf.where(in_range, 1.0, float("nan")))  # of the gradients, too
            return [output * tf.cast(factor, output.dtype) for output in outputs]
        limit, fewer = self._limit(self.snap_bits), max(self.snap_bits - 4, 0)
        remedy = f"snap_bits={fewer}, " + (f"whose limit is {self._limit(fewer):g}" if fewer else "which has no limit")
        message = [
            f"{self.name}: the largest value in a stream is",
            reach * limit,
            f"but with snap_bits={self.snap_bits} streams must stay below {limit:g}. Build the layer with {remedy}; "
            f"its weights stay. A value near {2 * limit:g} may stand for a larger one, infinity or NaN.",
        ]
        with tf.control_dependencies([tf.debugging.Assert(in_range, message)]):
            return tf.nest.map_structure(tf.identity, outputs)

    def _of_the_beginning(self, d_streams: Streams, streams: Streams, begin: tf.Tensor) -> Streams:
        """Return the gradients of the streams. Fail where the streams are not those of the beginning.

        Args:
            begin: the fingerprint of those.
        """
        _, again = fingerprint_streams(streams)
        if again is None:  # on a GPU and for XLA
            return d_streams
        message = (
            f"{self.name}: a layer inside gave other values when it was computed again, so the reversal did not find "
            "the input. Draw random numbers from a keras.random.SeedGenerator and keep state in Keras variables; where "
            "that can't be, build a ReversibleSequence with memory='store'."
        )
        with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(again == begin), [message])]):
            return tf.nest.map_structure(tf.identity, d_streams)

    def _limit(self, bits: int) -> float:
        return FixedPoint(bits).limit(tf.as_dtype(self.compute_dtype))

    def compute_output_spec(self, inputs: Any, **keywords: Any) -> Any:
        return keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, self.compute_dtype), inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "snap_bits": self.snap_bits}


@keras.saving.register_keras_serializable(package="accumtrain")
class Reversible(ReversibleLayer):
    """One reversible unit (Gomez et al. 2017, arXiv:1707.04585): y1 = x1 + f(x2), y2 = x2 + g(y1).

    Under a tf.GradientTape a call with training=True keeps only the output; other calls keep all activations. Inputs:
    one tensor [N, ..., 2 C], whose last axis holds x1 and x2, or a pair of tensors [N, ..., C]. Output: the same
    structure and shape, in the dtype of the streams: float32, or float64 under the policy float64.

    The masks of the streams, those that Keras carries or `mask` of the call, reach f and g, and the output keeps them.
    A stream without a mask has that of the other. The call takes the optional arguments of f and g by name, too.

    Args:
        f: a Keras layer or model, from [N, ..., C] to the same shape. One that requires several tensors, such as
            keras.layers.MultiHeadAttention, gets the stream for each.
        g: another one.
        snap_bits: in training the streams are integers in units of 2^-snap_bits, so the reversal is exact to the bit.
            They must stay below 2^(30 - snap_bits). 0 stands for floats, which are reversed up to rounding.

    Raises:
        ValueError: f or g is no Keras layer, changes the shape of its input, or requires a mask. Or the last axis can't
            be halved.
        tf.errors.InvalidArgumentError: a stream has reached its limit in training, or the reversal has given another
            input. XLA has no assertions: there the output and the gradients are NaN beyond the limit.
    """

    def __init__(self, f: keras.layers.Layer, g: keras.layers.Layer, snap_bits: int = SNAP_BITS, **kwargs: Any):
        for name, layer in (("f", f), ("g", g)):
            if not isinstance(layer, keras.layers.Layer):
                raise ValueError(f"{name}={layer!r} is not a Keras layer; wrap a function in keras.layers.Lambda")
            if masks := [argument for argument in required_arguments(layer) if argument.endswith("mask")]:
                raise ValueError(
                    f"{name}={layer.name} requires {masks[0]} in its call, but each required argument gets the stream; "
                    f"write {masks[0]}=None there, and masks reach it"
                )
        super().__init__((f, g), snap_bits=snap_bits, memory="reverse", **kwargs)
        self.f, self.g = f, g

    @property
    def pairs(self) -> list[Pair]:
        return [(self.f, self.g)]

    def get_config(self) -> dict[str, Any]:
        layers = {name: keras.saving.serialize_keras_object(layer) for name, layer in (("f", self.f), ("g", self.g))}
        return {**super().get_config(), **layers, "same": self.f is self.g}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Reversible:
        config = dict(config)
        f, g = (keras.saving.deserialize_keras_object(config.pop(name)) for name in ("f", "g"))
        return cls(f, f if config.pop("same") else g, **config)


@keras.saving.register_keras_serializable(package="accumtrain")
class ReversibleSequence(ReversibleLayer):
    """Reversible units one after the other (Gomez et al. 2017, arXiv:1707.04585), of which only the output is kept.

    The backward pass computes the input of each unit from its output, so activations do not grow with the number of
    units. Inputs, output, masks and further arguments are as in `Reversible`.

    Args:
        units: pairs (f, g) of Keras layers or models that keep the shape [N, ..., C], or `Reversible` layers. A layer
            may occur several times: its weights are then shared.
        snap_bits: as in `Reversible`.
        memory: `reverse`, or `store`, which keeps all activations: the same function with the same gradient.

    Raises:
        ValueError: a unit is no pair of Keras layers or has another snap_bits. Or f or g changes the shape of its input
            or requires a mask. Or the last axis can't be halved.
        tf.errors.InvalidArgumentError: as in `Reversible`.
    """

    def __init__(
        self, units: Sequence[Pair | Reversible], snap_bits: int = SNAP_BITS, memory: str = "reverse", **kwargs: Any
    ):
        if not units:
            raise ValueError("units=[] holds no unit; give at least one pair (f, g)")
        reversibles = [_as_reversible(index, unit, snap_bits, kwargs.get("dtype")) for index, unit in enumerate(units)]
        layers = [layer for unit in reversibles for layer in (unit.f, unit.g)]
        super().__init__(layers, snap_bits=snap_bits, memory=memory, **kwargs)
        self.units = reversibles

    @property
    def pairs(self) -> list[Pair]:
        return [(unit.f, unit.g) for unit in self.units]

    def get_config(self) -> dict[str, Any]:
        """Each layer once, and for each unit the indices of its f and g, so that shared layers stay shared."""
        layers = list({id(layer): layer for pair in self.pairs for layer in pair}.values())
        indices = {id(layer): index for index, layer in enumerate(layers)}
        return {
            **super().get_config(),
            "layers": [keras.saving.serialize_keras_object(layer) for layer in layers],
            "units": [[indices[id(f)], indices[id(g)]] for f, g in self.pairs],
            "memory": self.memory,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ReversibleSequence:
        config = dict(config)
        layers = [keras.saving.deserialize_keras_object(layer) for layer in config.pop("layers")]
        return cls([(layers[f], layers[g]) for f, g in config.pop("units")], **config)


def _as_reversible(index: int, unit: Pair | Reversible, snap_bits: int, dtype: Any) -> Reversible:
    if isinstance(unit, Reversible):
        if unit.snap_bits != snap_bits:
            raise ValueError(
                f"units[{index}].snap_bits={unit.snap_bits}, but the sequence has {snap_bits}, and all units of a "
                "sequence have the same numbers; give both the same"
            )
        return unit
    if not isinstance(unit, (list, tuple)) or len(unit) != 2:
        raise ValueError(f"units[{index}]={unit!r} is neither a pair (f, g) of Keras layers nor a Reversible")
    return Reversible(*unit, snap_bits=snap_bits, dtype=dtype)


def _call_on_stream(
    layer: keras.layers.Layer,
    mask: tf.Tensor | None,
    numbers: FixedPoint,
    keywords: dict[str, Any],
    values: LayerVariables,
    training: bool | None,
) -> PureLayer:
    """Return the layer as a function of a masked stream, which stands for each of its required arguments."""
    taken = {name: value for name, value in keywords.items() if name in parameters_of(layer)}
    shared, pack = flatten_with_masks((mask, taken))

    def arguments(x: tf.Tensor, shared: list[tf.Tensor]) -> tuple[list[tf.Tensor], dict[str, Any]]:
        mask, taken = pack(shared)
        return _for_each_required(layer, set_mask(numbers.differentiable_read(x), mask)), taken

    return PureLayer(layer, values, training, arguments, shared=shared)


def _for_each_required(layer: keras.layers.Layer, x: Any) -> list[Any]:
    return [x] * max(1, len(required_arguments(layer)))


def _keywords(layer: keras.layers.Layer) -> list[inspect.Parameter]:
    """Return the optional parameters of the layer's call, as keywords."""
    optional = [parameter for parameter in parameters_of(layer).values() if parameter.default is not parameter.empty]
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in optional]


def _split_streams(tensors: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    """Return the two streams of one joined tensor, or of a pair."""
    return tuple(tensors) if len(tensors) == 2 else tuple(tf.split(tensors[0], 2, axis=-1))


def _masks_of_streams(masks: list[tf.Tensor | None]) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """Return the masks of the two streams, which have the same positions. One without a mask has that of the other."""
    of_x1, of_x2 = masks * (2 // len(masks))
    return of_x2 if of_x1 is None else of_x1, of_x1 if of_x2 is None else of_x2


def _stream_shapes(name: str, input_shape: Any) -> list[tuple[int | None, ...]]:
    """Return the shapes of the two streams.

    Raises:
        ValueError: the input is neither a tensor with an even last axis nor two tensors of one shape.
    """
    if isinstance(input_shape, (list, tuple)) and input_shape and isinstance(input_shape[0], (list, tuple)):
        shapes = [tuple(shape) for shape in input_shape]
        if len(shapes) != 2 or shapes[0] != shapes[1]:
            raise ValueError(f"{name} got inputs {shapes}, but takes one tensor or two of equal shape; pass (x1, x2)")
        return shapes
    *outer, channels = tuple(input_shape)
    if channels is None or channels % 2:
        raise ValueError(
            f"{name} got an input {tuple(input_shape)}, but splits its last axis into two halves; make that axis an "
            "even number, or pass a pair of tensors (x1, x2)"
        )
    return [(*outer, channels // 2)] * 2


def _disable_rewrites() -> None:
    """Turn off two passes of the graph optimizer, for the graphs that this process runs from now on.

    They rewrite sums and products with constants where nothing else uses the inner tensors. That is so in the forward
    pass, but not in a replay, where the gradient uses them. The rounding would differ, and the reversal would not be
    exact.
    """
    if not tf.executing_eagerly() and not is_for_xla():
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False, "constant_folding": False})


# --- arguments of a call, and the masks of tensors in them ------------------------------------------------------------


def parameters_of(layer: keras.layers.Layer) -> dict[str, inspect.Parameter]:
    """Return the parameters of the layer's call, by their names."""
    return dict(inspect.signature(layer.call).parameters)


def required_arguments(layer: keras.layers.Layer) -> list[str]:
    """Return the names of the arguments that the layer's call requires, such as query and value of attention."""
    parameters = parameters_of(layer).values()
    return [value.name for value in parameters if value.kind in POSITIONAL and value.default is value.empty]


def with_parameters(call: Callable, parameters: Iterable[inspect.Parameter]) -> Callable:
    """Return `call` with these parameters and `training`, by which Keras hands masks and the training mode to a layer.

    Of several parameters with one name the first counts. Keras reads them in the layer's __init__.
    """
    by_name: dict[str, inspect.Parameter] = {}
    for parameter in (*parameters, TRAINING):
        by_name.setdefault(parameter.name, parameter)
    signed: Any = partial(call)
    signed.__signature__ = inspect.Signature(sorted(by_name.values(), key=attrgetter("kind")))
    return signed


def flatten_with_masks(structure: Any) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], Any]]:
    """Return the tensors of a structure, then the masks that they carry, and the function that puts such a list back.

    A tensor in several places is returned once, so that the gradients of all its uses are summed as in the plain layer.
    A leaf that is no tensor, such as None or a flag, stays in its place. The function sets masks on the tensors that it
    gets, and keeps none of the structure's own.
    """
    leaves = tf.nest.flatten(structure)
    ids = [id(leaf) for leaf in leaves]
    tensors = {id(leaf): tf.convert_to_tensor(leaf) for leaf in leaves if tf.is_tensor(leaf)}
    masks = {key: tf.convert_to_tensor(mask_of(x)) for key, x in tensors.items() if mask_of(x) is not None}
    keys, masked = list(tensors), list(masks)
    template = tf.nest.map_structure(lambda leaf: None if tf.is_tensor(leaf) else leaf, structure)

    def pack(flat: Sequence[tf.Tensor]) -> Any:
        new = dict(zip(keys, flat[: len(keys)], strict=True))
        for key, mask in zip(masked, flat[len(keys) :], strict=True):
            set_mask(new[key], mask)
        rest = zip(ids, tf.nest.flatten(template), strict=True)
        return tf.nest.pack_sequence_as(template, [new.get(key, leaf) for key, leaf in rest])

    return [*tensors.values(), *masks.values()], pack
