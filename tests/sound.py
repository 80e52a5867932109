"""Bundles of real plans whose executables have the right interface and no code: sound to verify."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wanc.bundle import oci
from wanc.bundle.config import Blob, VariantConfig
from wanc.bundle.pieces import pieces_of
from wanc.bundle.store import NewVariant, write_bundle
from wanc.bundle.wire import record_of
from wanc.bundle.xla_cpu import TRIPLE
from wanc.bundle.xla_interface import XlaInterface, interface_from
from wanc.digest import of_bytes
from wanc.plan.abi import Program
from wanc.progress import Silent
from wanc.verify.executables import MAGIC
from wanc.verify.verify import Verified, verify_bundle

EXECUTABLE_TYPE = oci.XLA_CPU
ELEMENT_TYPES = {"float32": 11, "bfloat16": 16}


def stablehlo_of(program: Program) -> bytes:
    """What begins as StableHLO does."""
    return MAGIC + f" of {program.name}, {hash_of(program)}".encode()


def hash_of(program: Program) -> str:
    """What tells a program from others of its name."""
    return of_bytes(repr(program).encode())


_FILL = 15
"""A field that XLA's container does not have: readers go past."""


def executable_of(program: Program, fill_bytes: int = 0) -> bytes:
    """A container of XLA:CPU with the program's interface: no code, but all that is verified."""
    fill = (
        record_of(_FILL, random.Random(program.name).randbytes(fill_bytes)) if fill_bytes else b""
    )
    return _bare_executable(program) + fill


def _bare_executable(program: Program) -> bytes:
    return container(
        program.kind,
        [(tensor.dtype, tensor.shape) for tensor in program.arguments],
        [(tensor.dtype, tensor.shape) for tensor in program.outputs],
        program.replica_count,
    )


def container(
    name: str,
    arguments: Sequence[Any],
    results: Sequence[Any],
    replicas: int,
    triple: str = TRIPLE,
    features: str = "",
) -> bytes:
    """By xla/service/hlo.proto; a tensor is a dtype and a shape."""
    many = len(results) != 1
    result = _tuple(map(_shape, results)) if many else _shape(results[0])
    shape = b"".join(record_of(1, _shape(each)) for each in arguments) + record_of(2, result)
    module = record_of(1, name.encode()) + record_of(4, shape)
    if replicas > 1:
        module += record_of(15, _number(1, replicas) + _number(2, 1))
    target = record_of(1, triple.encode()) + record_of(3, features.encode())
    compiled = record_of(1, record_of(1, module)) + record_of(9, target)
    return b"\x00" + record_of(1, compiled) + record_of(2, b"")


def _shape(tensor: tuple[str, Sequence[int]]) -> bytes:
    dtype, sizes = tensor
    packed = b"".join(map(_varint, sizes))
    return _number(2, ELEMENT_TYPES[dtype]) + (record_of(3, packed) if sizes else b"")


def _tuple(shapes: Any) -> bytes:
    return _number(2, 13) + b"".join(record_of(4, shape) for shape in shapes)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def interface_of(executable: bytes) -> XlaInterface:
    """The interface of an executable that is in memory."""
    return interface_from(pieces_of(executable), len(executable))


def with_programs(
    config: VariantConfig, fill_bytes: int = 0
) -> tuple[VariantConfig, dict[str, bytes]]:
    """A config that names StableHLO and executables of its programs, and their bytes."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> Blob:
        blobs[of_bytes(data)] = data
        return Blob(digest=of_bytes(data), size_bytes=len(data))

    records = [
        replace(
            record,
            stablehlo=blob(stablehlo_of(record.program)),
            executable=blob(executable_of(record.program, fill_bytes)),
        )
        for record in config.programs
    ]
    return replace(config, programs=tuple(records)), blobs


def write_sound(path: Path, *configs: VariantConfig, fill_bytes: int = 0) -> Path:
    """Write a bundle of these variants, whose executables have so many bytes more."""
    made = [with_programs(config, fill_bytes) for config in configs]
    blobs = {digest: data for _, each in made for digest, data in each.items()}
    variants = [NewVariant(config=config, executable_type=EXECUTABLE_TYPE) for config, _ in made]
    write_bundle(path, variants, blobs.__getitem__)
    return path


def verified(path: Path) -> Verified:
    """What a verification of a bundle sees."""
    return verify_bundle(path, jobs=1, progress=Silent())


def faults(path: Path) -> list[tuple[str, str, str]]:
    """(kind, where, what) of each fault."""
    return [(f.kind, f.where, f.what) for f in verified(path).findings if f.is_fault]


# --- changing a bundle ----------------------------------------------------------------------------


def blob_file(path: Path, digest: str) -> Path:
    """Where a blob lies."""
    return path / "blobs" / "sha256" / digest.removeprefix("sha256:")


def values_in(value: Any) -> list[tuple[Any, Any]]:
    """(holder, key) of every value in JSON."""
    found = []
    stack = [value]
    while stack:
        holder = stack.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                stack.append(holder[key])
    return found


def _part(document: Any, key: str) -> Any:
    return document.get(key) if isinstance(document, dict) else None


def spelled(document: Any, *, canonical: bool = False) -> bytes:
    """JSON as wanc spells it; bytes stay what they are."""
    if isinstance(document, bytes):
        return document
    compact: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False}
    return json.dumps(document, sort_keys=canonical, **compact).encode(errors="surrogatepass")


class Editor:
    """Changes the JSON of a bundle, and makes every digest above it right again."""

    def __init__(self, path: Path, variant: int = 0) -> None:
        self.path = path
        self.top = json.loads((path / "index.json").read_bytes())
        self._entry = next(e for e in self.top["manifests"] if e["mediaType"] == oci.INDEX)
        self.index = self._read(self._entry)
        self.listed = self.index["manifests"][variant]
        self.manifest = self._read(self.listed)
        self.config = self._read(self.manifest["config"])

    def _read(self, descriptor: dict[str, Any]) -> Any:
        return json.loads(blob_file(self.path, descriptor["digest"]).read_bytes())

    def put(self, data: bytes) -> dict[str, Any]:
        """Write a blob; its digest and size."""
        blob_file(self.path, of_bytes(data)).write_bytes(data)
        return {"digest": of_bytes(data), "size": len(data)}

    def layer(self, data: bytes, media_type: str = EXECUTABLE_TYPE) -> dict[str, Any]:
        """Write a blob and list it as a layer; how a config names it."""
        written = self.put(data)
        self.manifest["layers"].append({"mediaType": media_type, **written})
        return {"digest": written["digest"], "size_bytes": written["size"]}

    def replace(self, program: int, kind: str, data: bytes) -> None:
        """Give a program another StableHLO or executable, and its layer."""
        record, written = self.config["programs"][program], self.put(data)
        for layer in self.manifest["layers"]:
            if layer["digest"] == record[kind]["digest"]:
                layer.update(written)
        record[kind] = {"digest": written["digest"], "size_bytes": written["size"]}

    def save(self) -> None:
        """Write all of it, from the config up."""
        for document, named in (
            (self.config, _part(self.manifest, "config")),
            (self.manifest, self.listed),
            (self.index, self._entry),
        ):
            written = self.put(spelled(document, canonical=document is self.config))
            if isinstance(named, dict):
                named.update(written)
        (self.path / "index.json").write_text(json.dumps(self.top))


def edit(path: Path, change: Callable[[Editor], object], variant: int = 0) -> None:
    """Change one variant's JSON, and all digests above it."""
    editor = Editor(path, variant)
    change(editor)
    editor.save()
