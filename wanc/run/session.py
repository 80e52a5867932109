"""A loaded variant: interprets the schedule's stages on an engine.

Knows bindings, buffers and branches. Does not know what the programs compute, or on which device.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 to numpy
import numpy as np

from wanc.bundle.config import VariantConfig
from wanc.errors import BundleError
from wanc.plan.abi import Program, Tensor, Weight
from wanc.plan.schedule import Binding, Call, Stage
from wanc.processes.world import World
from wanc.run.slices import cut
from wanc.runtime.engine import Buffer, Engine, Interface, Loaded
from wanc.weights.checkpoint import Component
from wanc.weights.shards import read_shards
from wanc.weights.stored import ReadCount

Array = np.ndarray[Any, Any]
Values = dict[str, Buffer]
"""Named values of calls; a scope of its own for each tile."""


@dataclass(slots=True, kw_only=True)
class Session:
    """State of one loaded variant on one engine."""

    config: VariantConfig
    engine: Engine
    world: World
    components: dict[str, Component]
    read_executable: Callable[[str], bytes]
    """The verified executable of a program, by the program's name."""
    casts: dict[str, int] = field(default_factory=dict)
    """How many weights have another dtype in the checkpoint, by ``float32 to bfloat16``."""
    _loaded: dict[tuple[str, tuple[int, ...]], Loaded] = field(default_factory=dict)
    _weights: dict[tuple[Any, ...], Buffer] = field(default_factory=dict)
    _shards: dict[tuple[Any, ...], list[Array]] = field(default_factory=dict)
    _feeds: dict[str, Array] = field(default_factory=dict)
    _fed: dict[tuple[Any, ...], Buffer] = field(default_factory=dict)

    def close(self) -> None:
        """Let go of the devices and of everything on them."""
        for held in (self._loaded, self._weights, self._fed, self._shards):
            held.clear()
        self.engine.close()

    def forget(self) -> None:
        """Drop all that one generation fed."""
        self._feeds.clear()
        self._fed.clear()
        self.engine.give_back()

    def prepare(
        self,
        stage_name: str,
        ranks: tuple[int, ...] | None = None,
        *,
        report: Callable[[str], None],
    ) -> None:
        """Load a stage's executables and weights."""
        for call in self.stage(stage_name).calls:
            program = self.program(call)
            on = self.ranks(program, ranks)
            if not self.here(on):
                continue
            self._executable(program, on)
            for weight in program.weights:
                report(weight.tensor_in(call.layers))
                self._weight(call, weight, on)

    def feed(self, name: str, array: Array) -> None:
        """Set a feed; slices that ranks hold of its old value are dropped."""
        declared = next(feed for feed in self.config.schedule.feeds if feed.name == name)
        assert array.shape == declared.shape, f"{name}: {array.shape}, needs {declared.shape}"
        self._feeds[name] = array.astype(declared.dtype, copy=False)
        self._fed = {key: buffer for key, buffer in self._fed.items() if key[0] != name}

    def run(
        self,
        stage_name: str,
        values: Values,
        *,
        branches: Collection[int],
        ranks: tuple[int, ...] | None = None,
    ) -> None:
        """Call a stage's programs for the wanted guidance branches; returns before they end.

        ranks are the one rank of a stage whose programs have a single replica.
        """
        for call in self.stage(stage_name).calls:
            if not set(call.branches) & set(branches):
                continue
            program = self.program(call)
            on = self.ranks(program, ranks)
            if not self.here(on):
                continue
            inputs = [self._weight(call, weight, on) for weight in program.weights]
            for binding, tensor in zip(call.inputs, program.inputs, strict=True):
                inputs.append(self._input(binding, tensor, values, on))
            outputs = self.engine.call(self._executable(program, on), inputs)
            values.update(zip(call.outputs, outputs, strict=True))

    def results(
        self,
        stage_name: str,
        values: Values,
        *,
        branches: Collection[int],
        ranks: tuple[int, ...] | None = None,
    ) -> Array:
        """Wait for a stage's results that ranks of this process hold, joined on dimension 0, fp32.

        Empty where they hold none: prompts of the other guidance branch, tiles of other ranks.
        """
        found = [
            self.engine.fetch(values[result.value], rank=here[0])
            for result in self.stage(stage_name).results
            if set(result.branches) & set(branches) and (here := self.here(ranks or result.ranks))
        ]
        joined = np.concatenate(found) if found else np.empty(0)
        return joined.astype(np.float32, copy=False)

    def copies(
        self, stage_name: str, values: Values, *, branches: Collection[int]
    ) -> dict[int, list[Array]]:
        """A stage's results as each rank of this process holds them, by rank."""
        found: dict[int, list[Array]] = {}
        for result in self.stage(stage_name).results:
            if set(result.branches) & set(branches):
                for rank in self.here(result.ranks):
                    copy = self.engine.fetch(values[result.value], rank=rank)
                    found.setdefault(rank, []).append(copy)
        return found

    @property
    def weights_read(self) -> ReadCount:
        """What this process read of the checkpoint so far."""
        return sum((each.read_count for each in self.components.values()), ReadCount())

    def process_of(self, rank: int) -> int:
        """The process that hosts a rank."""
        return rank // len(self.engine.local_ranks)

    def here(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the ranks that this process hosts."""
        return tuple(rank for rank in ranks if rank in self.engine.local_ranks)

    def stage(self, name: str) -> Stage:
        """A stage of the schedule by name."""
        for stage in self.config.schedule.stages:
            if stage.name == name:
                return stage
        raise BundleError(f"the bundle's schedule has no stage {name}")

    def is_single(self, stage: Stage) -> bool:
        """Whether a stage's programs have one replica, and run on a rank that is chosen."""
        return any(self.program(call).ranks == "one" for call in stage.calls)

    def program(self, call: Call) -> Program:
        """The program that a call calls."""
        return self.config.program(call.program).program

    def ranks(self, program: Program, chosen: tuple[int, ...] | None) -> tuple[int, ...]:
        """The ranks that a program runs on."""
        if program.ranks == "all":
            return self.config.mesh.ranks
        assert chosen is not None, f"{program.name} runs on one rank: say which"
        return chosen

    def _executable(self, program: Program, ranks: tuple[int, ...]) -> Loaded:
        key = (program.name, ranks)
        if key not in self._loaded:
            self._loaded[key] = self.engine.load(
                self.read_executable(program.name), Interface.of(program), ranks=ranks
            )
        return self._loaded[key]

    def _weight(self, call: Call, weight: Weight, ranks: tuple[int, ...]) -> Buffer:
        tensor = weight.tensor_in(call.layers)
        shard = (weight.axis, weight.dim, weight.shape, weight.dtype)
        key = (call.component, tensor, shard, ranks)
        if key not in self._weights:
            component, mesh = self.components[call.component], self.config.mesh
            shards = self._shards.get(key[:-1]) or read_shards(
                component, tensor, weight, mesh, self.here(ranks)
            )
            if len(ranks) == 1 and weight.axis is None:  # other ranks will take the very same one
                self._shards[key[:-1]] = shards
            self._weights[key] = self.engine.put(shards, ranks=ranks)
        return self._weights[key]

    def _input(
        self, binding: Binding, tensor: Tensor, values: Values, ranks: tuple[int, ...]
    ) -> Buffer:
        if binding.value is not None:
            return values[binding.value]
        assert binding.feed is not None
        key = (binding.feed, binding.slices, tensor.shape, ranks)
        if key not in self._fed:
            whole = self._feeds[binding.feed]
            parts = cut(whole, binding.slices, self.config.mesh, self.here(ranks), tensor.shape)
            self._fed[key] = self.engine.put(parts, ranks=ranks)
        return self._fed[key]
