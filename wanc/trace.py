"""Program -> Traced: the exported graph of one rank, on tensors without memory.

Knows torch.export, and nothing of the model's arithmetic or of StableHLO.
"""

import functools
import inspect
import linecache
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.traceback import preserve_node_meta, set_stack_trace
from torch.overrides import TorchFunctionMode

from wanc.model.programs import call_graph, graph_of
from wanc.plan.abi import Program
from wanc.spec.target import DType

TORCH_DTYPES: dict[DType, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}

_KEPT_WHOLE = (
    torch.ops.aten.scaled_dot_product_attention.default,
    torch.ops.aten._upsample_nearest_exact2d.vec,
)
"""Operations that stay one node, so that their lowering is wanc's to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A program's graph in core ATen operators and wanc's own."""

    program: Program
    exported: torch.export.ExportedProgram

    @property
    def text(self) -> str:
        """The graph, for people."""
        return str(self.exported.graph_module.print_readable(print_output=False))


class _Program(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.graph = graph_of(program)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        with preserve_node_meta(), _Sources():
            return call_graph(self.graph, self.program, tensors)


class _Sources(TorchFunctionMode):
    """Makes the stack trace of each node the one line outside of torch that called for it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        frame = inspect.currentframe()
        while frame and frame.f_code.co_filename.startswith(_NO_SOURCES):
            frame = frame.f_back
        if frame:
            code = frame.f_code
            set_stack_trace([_shown(code.co_filename, frame.f_lineno, code.co_name)])
        return func(*args, **(kwargs or {}))


_NO_SOURCES = (torch.__path__[0], __file__)


@functools.cache
def _shown(file: str, line: int, function: str) -> str:
    """A line of code as Python shows it in a traceback."""
    return f'File "{file}", line {line}, in {function}\n    {linecache.getline(file, line).strip()}'


def trace(program: Program) -> Traced:
    """Export a program; asserts that the outputs are those of its ABI."""
    with FakeTensorMode():
        tensors = tuple(
            torch.empty(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype])
            for tensor in program.arguments
        )
    table = torch.export.default_decompositions()
    for kept in _KEPT_WHOLE:
        table.pop(kept, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its own tree specs
        exported = torch.export.export(_Program(program), tensors, strict=False)
        exported = exported.run_decompositions(table)
    _check_outputs(program, exported)
    return Traced(program=program, exported=exported)


def _check_outputs(program: Program, exported: torch.export.ExportedProgram) -> None:
    (output,) = [node for node in exported.graph.nodes if node.op == "output"]
    seen = [(tuple(v.meta["val"].shape), v.meta["val"].dtype) for v in output.args[0]]
    needed = [(tensor.shape, TORCH_DTYPES[tensor.dtype]) for tensor in program.outputs]
    assert seen == needed, f"{program.name} gives {seen}, its ABI says {needed}"
