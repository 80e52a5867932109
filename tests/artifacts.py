"""StableHLO that tests write by hand, as modules and as the artifacts that compilers get."""

from typing import Any

from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo

from wanc.runtime import cpu
from wanc.runtime.engine import Interface, TensorType


def parsed(text: str) -> Any:
    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    stablehlo.register_dialect(context)
    with context:
        return ir.Module.parse(text)


def artifact(text: str) -> bytes:
    module = parsed(text)
    with module.context:
        data: bytes = stablehlo.serialize_portable_artifact(module, "1.10.0")
    return data


def interface_of(executable: Any) -> Interface:
    """What a loaded executable of XLA takes and gives, by its own HLO."""
    (module,) = executable.hlo_modules()
    shape = xla_client.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    parameters, results = (
        tuple(TensorType(shape=tuple(s.dimensions()), dtype=s.numpy_dtype()) for s in shapes)
        for shapes in (shape.parameter_shapes(), results)
    )
    header = module.to_string().partition("\n")[0]
    return Interface(
        name=module.name, parameters=parameters, results=results, aliases=cpu._aliases(header)
    )
