"""A double of neuronx-cc, AWS's compiler: it compiles nothing, and packs its input into a NEFF.

Called by the script that tests.doubles.neuron installs. Follows AWS's "Neuron Compiler
CLI Reference Guide" and "Work with NEFF Files", and shares no code with wanc. Beside the script lie
``behaviour.json``, a list of what the next compiles act out (it is empty once all is acted), and
``calls.jsonl``, a line for each call. Imports what it needs when it needs it, to start fast.
"""

import argparse
import fcntl
import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

VERSION = "2.28.7011.0+a1b2c3d4"
INPUT_MEMBER = "double/"
"""Folder of the NEFF's tar that has the compiler's input, under its own name."""
FAILED = 70
ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 6: 1, 7: 2, 8: 4, 10: 2, 11: 4, 16: 2}
"""By XLA's number of the element type; 5, 9, 12, 15 and 18 are 64 bits wide or complex."""
COLLECTIVES = {"all-reduce", "all-gather", "reduce-scatter", "all-to-all"}
UNSAFE_FP8 = "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3"


# --- the command line -----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The documented options, and the internal ones that are known from public use."""
    top = argparse.ArgumentParser(prog="neuronx-cc", allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list-operators", allow_abbrev=False)
    listing.add_argument("--framework", choices=["XLA"], required=True)
    line = commands.add_parser("compile", allow_abbrev=False)
    line.add_argument("model_files", nargs=1)
    line.add_argument("--framework", choices=["XLA"], required=True)
    line.add_argument("--target", choices=["trn1", "trn1n", "trn2", "trn3", "inf2"], required=True)
    line.add_argument("--logical-nc-config", "-lnc", "--lnc", type=int, choices=[1, 2], default=2)
    line.add_argument("--output", default="file.neff")
    line.add_argument("--optlevel", "-O", type=int, choices=[1, 2, 3], default=2)
    line.add_argument("--model-type", choices=["generic", "transformer", "unet-inference"])
    line.add_argument("--auto-cast", choices=["none", "matmult", "all"], default="none")
    line.add_argument("--auto-cast-type", choices=["bf16", "fp16", "tf32", "fp8_e4m3"])
    line.add_argument("--verbose", choices=["info", "warning", "error", "critical", "debug"])
    line.add_argument("--logfile", default="log-neuron-cc.txt")
    line.add_argument("--enable-fast-loading-neuron-binaries", action="store_true")
    line.add_argument("--disable-mixed-precision-accumulation", action="store_true")
    line.add_argument("--hbm-scratchpad-page-size", type=int)
    line.add_argument("--internal-max-instruction-limit", type=int)
    line.add_argument("--internal-hlo2tensorizer-options", action="append", default=[])
    return top


def main(here: Path, arguments: list[str]) -> None:
    """What one call does; here is the folder of the script."""
    if arguments in (["--version"], ["-V"]):
        note_call(here, arguments, "")
        print(f"NeuronX Compiler version {VERSION}\n\nPython version 3.11.9")
        print(f"HWM version {VERSION}\nNumPy version 2.4.6", flush=True)
        return
    act = next_act(here) if arguments[:1] == ["compile"] else ""
    note_call(here, arguments, act)
    line = parser().parse_args(arguments)
    if line.command == "list-operators":
        print("\n".join(sorted({"Add", "Dot", "Reduce", "AllReduce", "AllGather", "Tuple"})))
        return
    unsafe = any(UNSAFE_FP8 in each for each in line.internal_hlo2tensorizer_options)
    if line.target == "trn3" and unsafe:
        fail("[NCC_EOCP001] Mixed use of the two mutually-exclusive types of FP8")
    source = Path(line.model_files[0])
    interface = interface_of(source.read_bytes())
    act_out(here, act)
    neff = packed(line, source, interface, act)
    Path(line.output).write_bytes(neff)
    print("Compiler status PASS")


def fail(message: str) -> None:
    """End as the compiler does on an error of the program."""
    print(f"ERROR {os.getpid()} [neuronx-cc]: {message}", file=sys.stderr, flush=True)
    sys.exit(FAILED)


# --- what it acts out -----------------------------------------------------------------------------


def next_act(here: Path) -> str:
    """Take the next act off the list; calls of several processes wait for each other."""
    with (here / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = here / "behaviour.json"
        acts = json.loads(path.read_text())
        path.write_text(json.dumps(acts[1:]))
        return acts[0] if acts else "ok"


def note_call(here: Path, arguments: list[str], act: str) -> None:
    """Add a line to the list of calls."""
    call = {
        "arguments": arguments,
        "act": act,
        "folder": str(Path.cwd()),
        "environment": dict(os.environ),
        "pid": os.getpid(),
    }
    with (here / "calls.jsonl").open("a") as calls:
        fcntl.flock(calls, fcntl.LOCK_EX)
        calls.write(json.dumps(call) + "\n")


def act_out(here: Path, act: str) -> None:
    """Do what the act says, where it comes before the output."""
    name, _, seconds = act.partition(" ")
    if name in ("hang", "child"):  # a child holds on to nothing but its own life
        child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
        (here / "child.pid").write_text(str(child.pid))
    if name == "hang":
        time.sleep(600)
    elif name == "slow":
        time.sleep(float(seconds))
    elif name == "exit70":
        print("some backend ended without a reason", flush=True)
        sys.exit(70)
    elif name == "diagnosed":
        fail("[NCC_EVRF007] The number of instructions generated exceeds the limit.")
    elif name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "killed137":
        sys.exit(137)
    elif name == "killedchild":
        fail("[F137] neuronx-cc was forcibly killed - most commonly for lack of system memory.")
    elif name == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif name == "error":
        print("error: an internal error", file=sys.stderr, flush=True)
        sys.exit(1)
    elif name == "nothing":
        sys.exit(0)


# --- what it is given -----------------------------------------------------------------------------


def interface_of(data: bytes) -> dict[str, list[tuple[str, int]]]:
    """Names and sizes of the program's parameters and results."""
    if data.startswith(b"ML\xefR"):
        from jaxlib import _jax

        computation = _jax.mlir.mlir_module_to_xla_computation(
            data, use_tuple_args=False, return_tuple=False
        )
        return hlo_interface(computation.as_serialized_hlo_module_proto(), strict=False)
    return hlo_interface(data, strict=True)


def hlo_interface(data: bytes, *, strict: bool) -> dict[str, list[tuple[str, int]]]:
    """Of an HloModuleProto; strict refuses what a reader with 32-bit ids would misread."""
    try:
        module = fields(data)
        computations = [fields(each) for each in module[3]]
    except (IndexError, KeyError, ValueError):
        fail("cannot parse the HloModuleProto")
    entry_id = module.get(6, [0])[0]
    numbers = [entry_id]
    for computation in computations:
        numbers += [*computation.get(5, []), *computation.get(6, [])]
        for instruction in map(fields, computation[2]):
            numbers += instruction.get(35, [])
            for number in (36, 37, 38):
                numbers += [
                    one for part in instruction.get(number, []) for one in packed_ints(part)
                ]
            opcode = text(instruction[2][0])
            if strict and opcode in COLLECTIVES and 49 not in instruction:
                fail(f"{opcode} has no replica groups")
    if strict and max(numbers) >= 1 << 31:
        fail(f"id {max(numbers)} does not fit 32 bits")
    entry = next(each for each in computations if each.get(5, [0])[0] == entry_id)
    return entry_interface(entry)


def entry_interface(entry: dict[int, list]) -> dict[str, list[tuple[str, int]]]:
    """Of an entry computation: names from the attributes, else by position."""
    program = fields(entry[4][0])
    inputs = [shape_bytes(shape) for shape in program.get(1, [])]
    result = fields(program[2][0])
    outputs = [shape_bytes(each) for each in result.get(4, [])] or [shape_bytes(program[2][0])]
    names = {
        "input": [f"input{i}" for i in range(len(inputs))],
        "output": [f"output{i}" for i in range(len(outputs))],
    }
    root_id = entry[6][0]
    for instruction in map(fields, entry[2]):
        attributes = {
            text(pair[1][0]): text(pair[2][0])
            for each in instruction.get(68, [])
            for pair in map(fields, fields(each).get(1, []))
        }
        if text(instruction[2][0]) == "parameter" and "neff_input_names" in attributes:
            names["input"][instruction.get(9, [0])[0]] = attributes["neff_input_names"]
        if instruction[35][0] == root_id and "neff_output_names" in attributes:
            names["output"] = attributes["neff_output_names"].split(",")
    return {
        "input": list(zip(names["input"], inputs, strict=True)),
        "output": list(zip(names["output"], outputs, strict=True)),
    }


def shape_bytes(shape: bytes) -> int:
    """Size of an array's ShapeProto."""
    parts = fields(shape)
    element = parts[2][0]
    if element not in ELEMENT_BYTES:
        fail(f"element type {element} is not supported")
    total = ELEMENT_BYTES[element]
    for dimension in (one for part in parts.get(3, []) for one in packed_ints(part)):
        total *= dimension
    return total


def fields(message: bytes) -> dict[int, list]:
    """A protobuf message: values by field number."""
    found: dict[int, list] = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        if tag & 7 == 0:
            value, at = varint(message, at)
        elif tag & 7 == 2:
            size, at = varint(message, at)
            value, at = message[at : at + size], at + size
        else:
            size = {1: 8, 5: 4}[tag & 7]
            value, at = message[at : at + size], at + size
        found.setdefault(tag >> 3, []).append(value)
    return found


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def packed_ints(part: int | bytes) -> Iterator[int]:
    """A repeated number, packed or not."""
    if isinstance(part, int):
        yield part
        return
    at = 0
    while at < len(part):
        value, at = varint(part, at)
        yield value


def text(value: bytes) -> str:
    return value.decode()


# --- what it writes -------------------------------------------------------------------------------


def packed(
    line: argparse.Namespace,
    source: Path,
    interface: dict[str, list[tuple[str, int]]],
    act: str,
) -> bytes:
    """A NEFF, or what the act has of it."""
    if act == "empty":
        return b""
    if act == "garbage":
        return b"not a NEFF" * 200
    if act == "wrong-size":
        name, size = interface["input"][0]
        interface["input"][0] = name, size + 2
    if act == "wrong-count":
        interface["output"].append(("output99", 4))
    lnc = 3 - line.logical_nc_config if act == "wrong-lnc" else line.logical_nc_config
    return neff(interface, {source.name: source.read_bytes()}, lnc=lnc)


def neff(
    interface: dict[str, list[tuple[str, int]]], inputs: dict[str, bytes], *, lnc: int = 2
) -> bytes:
    """A NEFF with an interface, and files in the double's folder."""
    variables = {
        name: {"type": kind, "var_id": position, "size": size, "ops": []}
        for position, (kind, name, size) in enumerate(
            (kind, name, size) for kind, tensors in interface.items() for name, size in tensors
        )
    }
    scratch = {"type": "virtual", "var_id": len(variables), "size": 64, "backing_variable_off": 0}
    definition = json.dumps({"name": "sg00", "var": variables | {"scratch": scratch}}).encode()
    members = {
        "neff.json": json.dumps({"compiler": f"double of neuronx-cc {VERSION}"}).encode(),
        "sg00/def.json": definition,
        "sg00/pe.bin": bytes(64),
        **{INPUT_MEMBER + name: data for name, data in inputs.items()},
    }
    if lnc == 2:
        members["sg01/def.json"] = definition
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    data = bytearray(archive.getvalue())
    data[4:8] = bytes(4)  # the hour, in gzip's header
    return header(bytes(data), lnc) + bytes(data)


def header(data: bytes, lnc: int) -> bytes:
    """The documented C struct, field by field."""
    parts = [
        struct.pack("<QQQQQ", 2, 1024, len(data), 2, 0),
        VERSION.encode().ljust(128, b"\0"),
        struct.pack("<I", lnc),
        hashlib.md5(data).digest().ljust(32, b"\0"),
        bytes(range(16)),
        b"double".ljust(256, b"\0"),
        struct.pack("<I", lnc),
        bytes(64),
        struct.pack("<Q", 0),
        struct.pack("<I", lnc),
        bytes(468),
    ]
    return b"".join(parts)
