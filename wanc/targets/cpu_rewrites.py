"""What the cpu target changes in a program before XLA sees it, but for sums over ranks (cpu_sums).
Identity is taken before.

Knows no model. Convolutions are written as XLA:CPU is fast at them, and what lies between them
keeps the order of dims that they want. A program without convolutions stays as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from wanc.targets.cpu_convolutions import convolution
from wanc.targets.cpu_layout import FOLLOWING, Laid, lie, plain

_CONVOLUTION = "stablehlo.convolution"


def rewrite(module: Any) -> bool:
    """Rewrite the module's convolutions in place; False where it has none."""
    if not any(op.name == _CONVOLUTION for op in _within(module.operation)):
        return False
    with module.context, ir.Location.unknown():
        _rebuild_main(module)
        module.operation.verify()
    return True


def _rebuild_main(module: Any) -> None:
    """Emit the main function anew, its calls inlined."""
    functions = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in module.body.operations}
    main = functions["main"]
    rebuilt: Any = func.FuncOp("rebuilt", main.type, ip=ir.InsertionPoint(module.body))
    body = rebuilt.add_entry_block()
    with ir.InsertionPoint(body):
        results = _walk(main, [plain(value) for value in body.arguments], functions)
        func.ReturnOp([lie(x) for x in results])
    for name in main.attributes:
        rebuilt.attributes[name] = main.attributes[name]
    for function in functions.values():
        function.operation.erase()


def _walk(function: Any, arguments: Sequence[Laid], functions: Mapping[str, Any]) -> list[Laid]:
    """Emit the function's operations at the insertion point; what it returns."""
    block = function.entry_block
    known: dict[Any, Laid] = dict(zip(block.arguments, arguments, strict=True))
    for op in block.operations:
        name = op.operation.name
        operands = [known[value] for value in op.operands]
        if name == "func.return":
            return operands
        if name == "func.call":
            callee = functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value]
            results = _walk(callee, operands, functions)
        else:
            laid = _laid(op, operands)
            results = _copy(op, known) if laid is None else [laid]
        known.update(zip(op.operation.results, results, strict=True))
    raise AssertionError("a function ends in a return")


def _laid(op: Any, operands: Sequence[Laid]) -> Laid | None:
    """The operation's one result as a rule has it; None where the operation stays as it is."""
    name = op.operation.name
    if name == _CONVOLUTION:
        return convolution(op, operands)
    rule = FOLLOWING.get(name)
    if rule is None or all(x.plain for x in operands):
        return None
    return rule(op, operands)


def _copy(op: Any, known: Mapping[Any, Laid]) -> list[Laid]:
    """The operation as it is, on tensors as they are named; its regions may use tensors too."""
    values: dict[Any, Any] = {}
    for inner in _within(op.operation):
        for value in inner.operands:
            if value in known and value not in values:
                values[value] = lie(known[value])
    clone = op.operation.clone()
    for inner in _within(clone):
        for i, value in enumerate(inner.operands):
            if value in values:
                inner.operands[i] = values[value]
    return [plain(value) for value in clone.results]


def _within(op: Any) -> Iterator[Any]:
    """The operation and all in its regions."""
    yield op
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from _within(inner.operation)
