"""A bundle on disk: an OCI image layout, read with every digest checked, written blobs first.

Knows no model and no target. Input is untrusted: names are digests, never paths, and links are
refused.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from wanc.bundle import oci
from wanc.bundle.config import (
    FORMAT_VERSION,
    Blob,
    VariantConfig,
    check_format_version,
    decode_config,
    encode_config,
)
from wanc.bundle.oci import Descriptor
from wanc.digest import Reading, of_bytes
from wanc.errors import BundleError, RunError
from wanc.files import check_folder, is_unfinished, locked, make_folder, sync, write_whole

MAX_JSON_BYTES = 64 << 20
"""Largest index, manifest or config that is read."""

VariantKey = tuple[tuple[str, str], ...]
"""A manifest's annotations, in order: they tell a variant from the others of its bundle."""

STAGE_ANNOTATION = "vnd.wanc.stage"
"""How far a variant was compiled; no part of its key."""

FORMAT_ANNOTATION = "vnd.wanc.format-version"

PULLED_ANNOTATION = "vnd.wanc.pulled"
"""Of the bundle's entry in index.json: PART where some blobs were left in a registry."""
PART = "part"

_INNER = ("blobs", "blobs/sha256")
"""Folders of a bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleVariant:
    """A variant as the bundle lists it."""

    manifest: Descriptor
    config: VariantConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """An opened bundle. Blobs are checked when they are read."""

    path: Path
    entry: Descriptor
    """The bundle index, as index.json names it."""
    variants: tuple[BundleVariant, ...]

    @property
    def digest(self) -> str:
        """The bundle's digest: that of its index."""
        return self.entry.digest

    @property
    def is_part(self) -> bool:
        """Whether blobs of some variants were left in the registry that it was pulled from."""
        return self.entry.annotations.get(PULLED_ANNOTATION) == PART

    def read(self, blob: Blob) -> bytes:
        """A blob's bytes; raises BundleError where it is missing or not what it says."""
        return read_blob(self.path, blob.digest, blob.size_bytes)


def open_bundle(path: Path) -> Bundle:
    """Open a bundle and check its index, manifests and configs; raises BundleError."""
    entry = bundle_entry(path)
    data = read_json_blob(path, entry)
    index = oci.parse(data, f"{path}: bundle index")
    check_index_format(index, path)
    manifests = oci.descriptors(index, "manifests", f"{path}: bundle index")
    variants = tuple(open_variant(path, manifest) for manifest in manifests)
    if not variants:
        raise BundleError(f"{path}: the bundle has no variants")
    return Bundle(path=path, entry=entry, variants=variants)


def check_destination(path: Path) -> None:
    """Raise RunError or BundleError, before any work, where a bundle cannot be written."""
    try:
        parent = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; a bundle is a directory")
        is_bundle = (path / "index.json").exists()
        links = [name for name in _INNER if (path / name).is_symlink()]
        strange = path.is_dir() and any(not _is_ours(file.name) for file in path.iterdir())
    except OSError as error:
        raise RunError(f"cannot write the bundle {path}: {error.strerror}") from error
    try:
        check_folder(parent)
    except OSError as error:
        raise RunError(
            f"cannot write the bundle {path}: {parent} takes no file: {error.strerror}"
        ) from error
    if is_bundle:
        open_bundle(path)
    elif strange:
        raise RunError(f"{path} is neither empty nor a bundle; choose another -o")
    elif links:
        raise RunError(f"{path}: {links[0]} is a link, and what is written would be elsewhere")


def _is_ours(name: str) -> bool:
    """Whether a write that was killed may have left a file of this name."""
    return name in ("blobs", "oci-layout") or is_unfinished(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVariant:
    """A variant to be written, and the blobs that its config names."""

    config: VariantConfig
    executable_type: str
    """Media type of its executables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a write did."""

    digest: str
    """The bundle's digest."""
    replaced: tuple[str, ...]
    """Variants that the bundle had with other programs, for people."""


def write_bundle(
    path: Path, variants: Sequence[NewVariant], read_blob: Callable[[str], bytes]
) -> Written:
    """Add variants to a bundle, or make it; read_blob gives the bytes of a digest.

    Blobs first, then manifests, then the index by an atomic rename: whatever ends this early
    leaves the bundle as it was. Variants that the bundle already has are replaced, others kept.
    """
    try:
        make_folder(path / "blobs" / "sha256")
        with locked(path):  # from the first blob on: what is not named yet would be cleared away
            for digest in {b.digest for variant in variants for b in config_blobs(variant.config)}:
                put_blob(path, read_blob(digest))
            manifests = [_put_variant(path, variant) for variant in variants]
            before = {_keyed(old.manifest)[0]: old for old in _existing_variants(path)}
            added = dict(map(_keyed, manifests))
            configs = {_keyed(m)[0]: new.config for m, new in zip(manifests, variants, strict=True)}
            replaced = [
                str(config.variant)
                for key, config in configs.items()
                if key in before and _programs(before[key].config) != _programs(config)
            ]
            kept = dict(_keyed(old.manifest) for old in before.values())
            return Written(digest=_put_index(path, kept | added), replaced=tuple(replaced))
    except OSError as error:
        raise RunError(f"cannot write the bundle {path}: {error}") from error


def _put_index(path: Path, manifests: dict[VariantKey, Descriptor]) -> str:
    listed = [manifests[key] for key in sorted(manifests)]
    index = oci.index_bytes(listed, {FORMAT_ANNOTATION: str(FORMAT_VERSION)})
    digest = put_blob(path, index)
    there = index_entries(path)
    others = [entry for entry in there if entry.media_type != oci.INDEX]
    is_part = any(
        entry.annotations.get(PULLED_ANNOTATION) == PART and entry.media_type == oci.INDEX
        for entry in there
    )
    write_entries(path, [entry_of(index, is_part=is_part), *others])
    return digest


def entry_of(index: bytes, *, is_part: bool = False) -> Descriptor:
    """What index.json says of a bundle index."""
    part = {PULLED_ANNOTATION: PART} if is_part else {}
    return oci.describe(oci.INDEX, index, **{oci.REF_NAME: "bundle", **part})


def write_entries(path: Path, entries: Sequence[Descriptor]) -> None:
    """Write index.json, which commits all that was written before; raises OSError.

    To be called by who holds the bundle, by ``locked``: two that add to it must both find room.
    Names are on the disk before they are referred to, and index.json's own before this returns.
    """
    layout = path / "oci-layout"
    if not (layout.is_file() and layout.read_bytes() == oci.LAYOUT):
        write_whole(layout, oci.LAYOUT)
        sync(path)
    sync(path / "blobs" / "sha256")
    write_whole(path / "index.json", oci.index_bytes([*entries], {}))
    sync(path)


# --- reading -------------------------------------------------------------------------------


def bundle_entry(path: Path) -> Descriptor:
    """What index.json says of the bundle's index; raises BundleError."""
    if not path.is_dir():
        raise BundleError(f"{path}: no such bundle; `wanc compile -o {path}` makes one")
    if not (path / "oci-layout").is_file() or not (path / "index.json").is_file():
        raise BundleError(f"{path}: not a bundle: oci-layout and index.json are not both there")
    for name in ("oci-layout", "index.json", *_INNER):
        if (path / name).is_symlink():
            raise BundleError(f"{path}: {name} is a link; a bundle holds none")
    found = [entry for entry in index_entries(path) if entry.media_type == oci.INDEX]
    if len(found) != 1:
        raise BundleError(f"{path}/index.json: names {len(found)} bundles; needs exactly one")
    return found[0]


def index_entries(path: Path) -> list[Descriptor]:
    """What index.json names: the bundle, and what is attached; nothing where it is not there."""
    file = path / "index.json"
    if not file.exists():
        return []
    return oci.entries(oci.parse(_read_small(file), str(file)), str(file))


def check_index_format(index: dict[str, object], where: Path | str) -> None:
    """Raise BundleError where the index is of a format that this version does not read."""
    annotations = index.get("annotations")
    version = annotations.get(FORMAT_ANNOTATION) if isinstance(annotations, dict) else None
    known = isinstance(version, str) and re.fullmatch("[0-9]{1,9}", version)
    check_format_version(int(str(version)) if known else None, str(where))


def open_variant(path: Path, manifest: Descriptor) -> BundleVariant:
    """A variant by its manifest, whose JSON is there; raises BundleError."""
    where = f"{path}: manifest {manifest.digest[:19]}"
    value = oci.parse(read_json_blob(path, manifest), where)
    if value.get("artifactType") != oci.VARIANT_TYPE:
        raise BundleError(
            f"{where}: artifactType {oci.quoted(value.get('artifactType'))} is not wanc's"
        )
    config = Descriptor.from_json(value.get("config"), where)
    if config.media_type != oci.CONFIG:
        raise BundleError(
            f"{where}: the config's media type {oci.quoted(config.media_type)} is not wanc's"
        )
    decoded = decode_config(read_json_blob(path, config), where)
    layers = {layer.digest: layer.size for layer in oci.descriptors(value, "layers", where)}
    for blob in config_blobs(decoded):
        if layers.get(blob.digest) != blob.size_bytes:
            raise BundleError(f"{where}: its config names {blob.digest}, its layers do not")
    return BundleVariant(manifest=manifest, config=decoded)


def config_blobs(config: VariantConfig) -> list[Blob]:
    """Every blob that a config names, each once, in order."""
    named = [blob for record in config.programs for blob in record.blobs]
    return list({blob.digest: blob for blob in named}.values())


def read_json_blob(path: Path, descriptor: Descriptor) -> bytes:
    """A blob that is JSON, its digest checked; raises BundleError."""
    if descriptor.size > MAX_JSON_BYTES:
        raise BundleError(f"{path}: {descriptor.digest} says {descriptor.size} bytes of JSON")
    return read_blob(path, descriptor.digest, descriptor.size)


def _read_small(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise BundleError(f"{path}: larger than {MAX_JSON_BYTES} bytes")
        return path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {error.strerror}") from error


def read_blob(path: Path, digest: str, size: int) -> bytes:
    """A blob's bytes, of a size and a digest; raises BundleError. Follows no link."""
    with _opened_blob(path, digest, size) as stream:
        data = stream.read()
    if of_bytes(data) != digest:
        raise _damaged(path, digest, of_bytes(data))
    return data


def check_blob(path: Path, digest: str, size: int) -> Path:
    """The file of a blob that is what it should be; raises BundleError. Follows no link."""
    with _opened_blob(path, digest, size) as stream:
        seen = Reading(stream).digest()
    if seen != digest:
        raise _damaged(path, digest, seen)
    return blob_path(path, digest)


@contextmanager
def _opened_blob(path: Path, digest: str, size: int) -> Iterator[FileIO]:
    file = blob_path(path, digest)
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            raise BundleError(f"{path}: blob {digest} is not a file but a link or a folder")
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as stream:
            seen = os.fstat(stream.fileno()).st_size
            if seen != size:
                raise BundleError(f"{path}: blob {digest} has {seen} bytes; needs {size}")
            yield stream
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
        raise BundleError(f"{path}: blob {digest} {what}: {error.strerror}") from error


def _damaged(path: Path, digest: str, seen: str) -> BundleError:
    return BundleError(f"{path}: blob {digest} is damaged: its bytes are {seen}")


def blob_path(path: Path, digest: str) -> Path:
    """Where a blob lies."""
    return path / "blobs" / "sha256" / digest.removeprefix("sha256:")


# --- writing -------------------------------------------------------------------------------


def _existing_variants(path: Path) -> tuple[BundleVariant, ...]:
    return open_bundle(path).variants if (path / "index.json").exists() else ()


def _programs(config: VariantConfig) -> dict[str, Blob]:
    """What a variant's programs are, as far as they were lowered."""
    return {r.program.name: r.stablehlo for r in config.programs if r.stablehlo}


def variant_keys(variants: Sequence[BundleVariant]) -> set[VariantKey]:
    """What tells variants from others of a bundle."""
    return {_keyed(variant.manifest)[0] for variant in variants}


def _keyed(manifest: Descriptor) -> tuple[VariantKey, Descriptor]:
    key = {k: v for k, v in manifest.annotations.items() if k != STAGE_ANNOTATION}
    return tuple(sorted(key.items())), manifest


def variant_annotations(config: VariantConfig) -> dict[str, str]:
    """What a variant's manifest and its entry in the index say of it."""
    texts = {f"vnd.wanc.{name}": text for name, text in config.variant.texts().items()}
    return {**texts, "vnd.wanc.model": config.model.name, STAGE_ANNOTATION: config.stage}


def _put_variant(path: Path, new: NewVariant) -> Descriptor:
    config, data = new.config, encode_config(new.config)
    put_blob(path, data)
    annotations = variant_annotations(config)
    layers: dict[str, Descriptor] = {}
    for record in config.programs:
        for blob, media in (
            (record.stablehlo, oci.STABLEHLO),
            (record.executable, new.executable_type),
        ):
            if blob:
                layers[blob.digest] = Descriptor(
                    media_type=media, digest=blob.digest, size=blob.size_bytes
                )
    if not layers:  # OCI wants a layer; this is its own empty one
        put_blob(path, oci.EMPTY_BYTES)
        empty = oci.describe(oci.EMPTY, oci.EMPTY_BYTES)
        layers[empty.digest] = empty
    manifest = oci.manifest_bytes(
        oci.describe(oci.CONFIG, data), list(layers.values()), annotations
    )
    put_blob(path, manifest)
    return oci.describe(oci.MANIFEST, manifest, **annotations)


def put_blob(path: Path, data: bytes) -> str:
    """Write a blob, where it is not there, and return its digest; raises OSError."""
    digest = of_bytes(data)
    file = blob_path(path, digest)
    if file.is_symlink() or not (file.is_file() and file.read_bytes() == data):
        write_whole(file, data)
    return digest
