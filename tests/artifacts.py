"""StableHLO that tests write by hand, as modules and as the artifacts that compilers get."""

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import stablehlo


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
