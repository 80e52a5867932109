"""From a StableHLO portable artifact to the HLO proto that neuronx-cc reads.

Knows XLA's hlo.proto as far as it changes it; the rest goes through as it came. XLA writes what
older readers of that format refuse or, worse, read past; AWS's own builders (nkipy) avoid it:

- ids of more than 32 bits: all are numbered anew, densely from 1;
- replica groups in a field of 2024: a reader without it would join all replicas, so the groups go
  back to the field that every reader has.

Inputs and outputs get the names by which a NEFF declares them, in the attributes that nkipy and
torch-neuronx use. A parameter whose buffer an output may take is one whose buffer it must take:
wanc runs programs in no other way, and torch-neuronx says it so.
"""

import functools
from typing import Any

from wanc.bundle.neff_names import INPUT_ATTRIBUTE, OUTPUT_ATTRIBUTE, input_name, output_name
from wanc.errors import ToolchainError

_MUST_ALIAS = 2

_SCHEMA = {
    "Module": (
        (3, "computations", "Computation*"),
        (5, "id", "int64"),
        (6, "entry_computation_id", "int64"),
        (7, "schedule", "Schedule"),
        (8, "input_output_alias", "Aliases"),
    ),
    "Computation": (
        (2, "instructions", "Instruction*"),
        (5, "id", "int64"),
        (6, "root_id", "int64"),
    ),
    "Instruction": (
        (2, "opcode", "string"),
        (9, "parameter_number", "int64"),
        (35, "id", "int64"),
        (36, "operand_ids", "int64*"),
        (37, "control_predecessor_ids", "int64*"),
        (38, "called_computation_ids", "int64*"),
        (49, "replica_groups", "ReplicaGroup*"),
        (68, "frontend_attributes", "Attributes"),
        (87, "collective_device_list", "DeviceList"),
    ),
    "DeviceList": ((1, "replica_groups", "ReplicaGroup*"), (2, "iota", "Other")),
    "ReplicaGroup": ((1, "replica_ids", "int64*"),),
    "Attributes": ((1, "map", "Attribute*"),),
    "Attribute": ((1, "key", "string"), (2, "value", "string")),
    "Schedule": ((1, "sequences", "Sequence*"),),
    "Sequence": ((1, "key", "int64"), (2, "value", "Order")),
    "Order": ((1, "instruction_ids", "int64*"),),
    "Aliases": ((1, "entries", "Alias*"),),
    "Alias": ((4, "kind", "int64"),),
    "Other": (),
}
"""What is read of XLA's hlo.proto and xla_data.proto: number, name and type; * for repeated. Maps
are repeated pairs and enumerations are integers, as they are on the wire."""


def hlo_module(stablehlo: bytes) -> bytes:
    """The HLO proto of a portable artifact; raises ToolchainError. Equal bytes give equal bytes."""
    from jaxlib import _jax

    try:
        computation = _jax.mlir.mlir_module_to_xla_computation(
            stablehlo, use_tuple_args=False, return_tuple=False
        )
    except _jax.JaxRuntimeError as error:
        raise ToolchainError(f"jaxlib makes no HLO of the program: {error}") from error
    return for_neuronx_cc(computation.as_serialized_hlo_module_proto())


def for_neuronx_cc(hlo: bytes) -> bytes:
    """A serialised HloModuleProto as neuronx-cc reads it."""
    module = _message("Module").FromString(hlo)
    module.id = 0  # XLA counts the modules that a process makes
    _number_anew(module)
    for computation in module.computations:
        for instruction in computation.instructions:
            _spell_out_groups(instruction)
        if computation.id == module.entry_computation_id:
            _name_interface(computation)
    for alias in module.input_output_alias.entries:
        alias.kind = _MUST_ALIAS
    data: bytes = module.SerializeToString(deterministic=True)
    return data


def _number_anew(module: Any) -> None:
    """Dense ids from 1, for instructions over the whole module and for computations."""
    computations = {each.id: new for new, each in enumerate(module.computations, start=1)}
    last = 0
    instructions: dict[int, dict[int, int]] = {}
    for computation in module.computations:
        ids = {each.id: new for new, each in enumerate(computation.instructions, start=last + 1)}
        last += len(ids)
        instructions[computation.id] = ids
        for each in computation.instructions:
            each.id = ids[each.id]
            _replace(each.operand_ids, ids)
            _replace(each.control_predecessor_ids, ids)
            _replace(each.called_computation_ids, computations)
        computation.root_id = ids[computation.root_id]
    for sequence in module.schedule.sequences:
        _replace(sequence.value.instruction_ids, instructions[sequence.key])
        sequence.key = computations[sequence.key]
    for computation in module.computations:
        computation.id = computations[computation.id]
    module.entry_computation_id = computations[module.entry_computation_id]


def _replace(ids: Any, new: dict[int, int]) -> None:
    ids[:] = [new[each] for each in ids]


def _spell_out_groups(instruction: Any) -> None:
    if not instruction.HasField("collective_device_list"):
        return
    devices = instruction.collective_device_list
    assert not devices.HasField("iota"), "wanc's lowering lists the ranks of every group"
    del instruction.replica_groups[:]
    instruction.replica_groups.extend(devices.replica_groups)
    instruction.ClearField("collective_device_list")


def _name_interface(entry: Any) -> None:
    for instruction in entry.instructions:
        if instruction.opcode == "parameter":
            _attribute(instruction, INPUT_ATTRIBUTE, input_name(instruction.parameter_number))
        if instruction.id == entry.root_id:
            count = len(instruction.operand_ids) if instruction.opcode == "tuple" else 1
            names = ",".join(map(output_name, range(count)))
            _attribute(instruction, OUTPUT_ATTRIBUTE, names)


def _attribute(instruction: Any, key: str, value: str) -> None:
    instruction.frontend_attributes.map.add(key=key, value=value)


@functools.cache
def _message(name: str) -> Any:
    """The class of a message of the schema. Fields that it does not name are kept unread."""
    from google.protobuf import (  # type: ignore[import-untyped]
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )

    file = descriptor_pb2.FileDescriptorProto(name="hlo.proto", package="hlo", syntax="proto3")
    for message, fields in _SCHEMA.items():
        described = file.message_type.add(name=message)
        for number, field, kind in fields:
            added = described.field.add(number=number, name=field)
            added.label = added.LABEL_REPEATED if kind.endswith("*") else added.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in _SCHEMA:
                added.type, added.type_name = added.TYPE_MESSAGE, f".hlo.{kind}"
            else:
                added.type = added.TYPE_INT64 if kind == "int64" else added.TYPE_STRING
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"hlo.{name}"))
