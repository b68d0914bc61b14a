"""From a program of TensorFlow to a function of JAX. This is the only file that uses jax.extend.

JAX exports a function of the same signature; the program takes the place of its module.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters.mlir import make_ir_context

COPY = "mhlo.copy"  # XLA makes these for results that reuse memory; JAX's StableHLO has no such operation
PRODUCTS = ("stablehlo.convolution", "stablehlo.dot", "stablehlo.dot_general")
ALIASES = "mhlo.input_output_alias"
PARAMETER, RESULT = re.compile(r"parameter_number = (\d+)"), re.compile(r"output_index = array<i64(?:: (\d+))?>")
DTYPE = re.compile(r"(ui|i|bf|f)(\d+)")
DTYPE_NAMES = {"f": "float", "bf": "bfloat", "i": "int", "ui": "uint"}


@dataclasses.dataclass(frozen=True)
class HandedOver:
    """A program as JAX takes it.

    Attributes:
        call: (*arguments) -> tuple of results, to be used under jax.jit.
        arguments: their shapes and dtypes.
        updated: by argument, the result that is its new value.
        results: number of results.
    """

    call: Callable[..., Any]
    arguments: list[jax.ShapeDtypeStruct]
    updated: dict[int, int]
    results: int

    @property
    def written(self) -> list[int]:
        """The arguments that have a new value."""
        return sorted(self.updated)

    @property
    def read(self) -> list[int]:
        """The other arguments."""
        return [index for index in range(len(self.arguments)) if index not in self.updated]

    @property
    def others(self) -> list[int]:
        """The results that are no new value."""
        return sorted(set(range(self.results)) - set(self.updated.values()))

    def call_in_place(self, written: Sequence[Any], read: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the new values and the other results, for values of the arguments `written` and `read`.

        With donate_argnums=0 jax.jit changes the first in place.
        """
        given = dict(zip([*self.written, *self.read], [*written, *read], strict=True))
        results = self.call(*(given[index] for index in range(len(given))))
        return [results[self.updated[index]] for index in self.written], [results[index] for index in self.others]

    def serialize(self) -> bytes:
        """Return `call_in_place` for a process without TensorFlow, as jax.export.deserialize reads it."""
        shapes = [[self.arguments[index] for index in indices] for indices in (self.written, self.read)]
        return bytes(_export(self.call_in_place, *shapes).serialize())


def hand_over(hlo: bytes, *, rounds: bool) -> HandedOver:
    """Return the program in a serialized HloModuleProto as a function of JAX.

    Args:
        rounds: a device may round the factors of float32 products, as with TensorFloat-32.
    """
    with make_ir_context():
        module = ir.Module.parse(mlir.hlo_to_stablehlo(hlo))
        updated = _take_aliases(module)
        _remove_copies(module)
        if not rounds:
            _keep_all_digits(module)
        arguments, results = _signature(module)
        artifact = mlir.serialize_portable_artifact(str(module), stablehlo.get_current_version())

    def placeholder(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(result.shape, result.dtype) for result in results)

    exported = dataclasses.replace(_export(placeholder, *arguments), mlir_module_serialized=artifact)
    return HandedOver(exported.call, arguments, updated, len(results))


def _export(function: Callable[..., Any], *arguments: Any) -> export.Exported:
    """Export for every platform: that of the export is not looked at where the function is called."""
    checks = [export.DisabledSafetyCheck.platform()]
    return export.export(jax.jit(function, keep_unused=True), platforms=["cpu"], disabled_checks=checks)(*arguments)


def _take_aliases(module: Any) -> dict[int, int]:
    """Return, by argument, the result that takes its memory. Remove the attributes that StableHLO does not have."""
    attributes = module.operation.attributes
    names = [str(getattr(attribute, "name", attribute)) for attribute in attributes]
    aliases = map(str, attributes[ALIASES]) if ALIASES in names else ()
    updated = {int(PARAMETER.findall(text)[0]): int(RESULT.findall(text)[0] or 0) for text in aliases}
    for name in names:
        if name.startswith("mhlo."):
            del attributes[name]
    return updated


def _remove_copies(module: Any) -> None:
    for copy in _find(module, COPY):
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def _keep_all_digits(module: Any) -> None:
    """Let no device round the factors of a product. The default of XLA on a GPU is TensorFloat-32."""
    highest = ir.ArrayAttr.get([stablehlo.PrecisionAttr.get("HIGHEST")] * 2)
    for product in _find(module, *PRODUCTS):
        product.attributes["precision_config"] = highest


def _find(module: Any, *names: str) -> list[Any]:
    """Return the operations of these names."""
    found: list[Any] = []

    def collect(operation: Any) -> Any:
        if operation.name in names:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    return found


def _signature(module: Any) -> tuple[list[jax.ShapeDtypeStruct], list[jax.ShapeDtypeStruct]]:
    """Return shape and dtype of the arguments and of the results."""
    main = next(each for each in module.body if "main" in str(each.attributes["sym_name"]))
    function = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    return [_shape(each) for each in function.inputs], [_shape(each) for each in function.results]


def _shape(kind: Any) -> jax.ShapeDtypeStruct:
    tensor = ir.RankedTensorType(kind)
    letters, bits = DTYPE.fullmatch(str(tensor.element_type)).groups()  # type: ignore[union-attr]
    dtype = "bool" if (letters, bits) == ("i", "1") else DTYPE_NAMES[letters] + bits
    return jax.ShapeDtypeStruct(tuple(tensor.shape), jnp.dtype(dtype))
