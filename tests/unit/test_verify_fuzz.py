"""wanc verify on bundles that are changed by chance: none is sound that was not before, none makes
it raise, and nothing outside of it is read.
"""

import copy
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.sound import Editor, blob_file, spelled, values_in, verified, write_sound
from tests.unit.conftest import variant_of
from wanc.bundle.config import encode_config
from wanc.bundle.reports import attach_report
from wanc.bundle.store import open_bundle
from wanc.errors import WancError

# --- what is read ---------------------------------------------------------------------------------

_opened: list[str] | None = None
_AUDITED = {"open", "os.scandir", "os.listdir"}


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is None or event not in _AUDITED or not isinstance(arguments[0], str | os.PathLike):
        return
    path = os.fspath(arguments[0])
    if event == "open" and arguments[2] & os.O_NOFOLLOW:  # the last part may be a link
        folder, name = os.path.split(path)
        _opened.append(os.path.join(os.path.realpath(folder), name))
    else:
        _opened.append(os.path.realpath(path))


sys.addaudithook(_audit)


@contextmanager
def watched() -> Iterator[list[str]]:
    """Real paths of all files and folders that are opened meanwhile, by whatever call."""
    global _opened
    _opened = opened = []
    try:
        yield opened
    finally:
        _opened = None


def outside(opened: list[str], bundle: Path) -> list[str]:
    """What was opened that is neither the bundle's nor code."""
    code = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    inside = os.path.realpath(bundle)
    return [
        path
        for path in opened
        if path != inside and not path.startswith((f"{inside}/", *(f"{each}/" for each in code)))
    ]


def test_the_watch_sees_what_is_read_outside(tmp_path: Path):
    bundle, secret = tmp_path / "bundle", tmp_path / "secret"
    bundle.mkdir()
    secret.write_text("x")
    (bundle / "link").symlink_to(secret)
    (bundle / "folder").symlink_to(tmp_path)
    for read in (
        lambda: (bundle / "link").read_bytes(),
        lambda: os.close(os.open(bundle / "link", os.O_RDONLY)),
        lambda: os.close(os.open(bundle / "folder" / "secret", os.O_RDONLY | os.O_NOFOLLOW)),
        lambda: os.listdir(bundle / "folder"),
    ):
        with watched() as opened:
            read()
        assert len(outside(opened, bundle)) == 1
    with watched() as opened, pytest.raises(OSError, match="symbolic"):
        os.open(bundle / "link", os.O_RDONLY | os.O_NOFOLLOW)
    assert outside(opened, bundle) == []


# --- what a bundle says ---------------------------------------------------------------------------


def meaning(path: Path) -> Any:
    """By variant, all that readers get but what is not determined; None where it is refused."""
    try:
        opened = open_bundle(path)
        return [
            (
                variant.manifest.annotations,
                determined(json.loads(encode_config(variant.config))),
                [opened.read(blob) for r in variant.config.programs for blob in r.blobs],
            )
            for variant in opened.variants
        ]
    except (WancError, OSError):
        return None


def determined(config: Any) -> Any:
    """A config without what nothing else in a bundle determines."""
    for parts, names in (
        ([config], ["requires"]),
        (config["programs"], ["collectives", "compile_key"]),
        ([config["model"]], ["sampling"]),
        ([config["model"]["vae"]], ["latents_mean", "latents_std"]),
    ):
        for part, name in ((part, name) for part in parts for name in names):
            del part[name]
    return json.dumps(config, sort_keys=True)


# --- mutations ------------------------------------------------------------------------------------

DEEP: Any = 1
for _ in range(300):
    DEEP = [DEEP]
ODD = [
    *(None, True, False, 0, 1, -1, 2, 1.0, 1.5, 1 << 40, 1 << 60, 10**30),
    *("", "x", "\x1b[2J", "é", "\ud800", "../../secret", "sha256:../../../secret"),
    *([], {}, [1], {"a": 1}, DEEP, "x" * 5000),
]


def mutate_json(document: Any, chance: random.Random) -> str:
    """One change somewhere; what it was."""
    values = values_in(document)
    if not values:
        return "nothing"
    holder, key = chance.choice(values)
    act = chance.choice(["drop", "rename", "retype", "nudge", "repeat", "swap", "add", "take"])
    if act == "drop":
        del holder[key]
    elif act == "rename" and isinstance(holder, dict):
        holder[key + chance.choice(["_", "x", "\0"])] = holder.pop(key)
    elif act == "nudge" and type(holder[key]) is int:
        holder[key] += chance.choice([-1, 1, 16, 1 << 20])
    elif act == "nudge" and type(holder[key]) is str and holder[key]:
        at = chance.randrange(len(holder[key]))
        holder[key] = holder[key][:at] + chance.choice("0aZ/\0") + holder[key][at + 1 :]
    elif act == "repeat" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif act == "swap" and isinstance(holder, list):
        other = chance.randrange(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    elif act == "add" and isinstance(holder, dict):
        holder[chance.choice(["x", "urls", "data", "subject"])] = copy.deepcopy(chance.choice(ODD))
    elif act == "take":  # what stands elsewhere: another digest, size, name, shape
        other_holder, other_key = chance.choice(values)
        holder[key] = copy.deepcopy(other_holder[other_key])
    else:
        act = "retype"
        holder[key] = copy.deepcopy(chance.choice(ODD))
    return act


def mutate_text(data: bytes, chance: random.Random) -> tuple[str, bytes]:
    """JSON of the same meaning, or of two: to some reader it is another."""
    act = chance.choice(["space", "twice", "escape", "float", "comma", "after"])
    if act == "space":
        return act, data.replace(b",", b", ", 1)
    if act == "twice":
        return act, data.replace(b"{", b'{"mediaType":"x",' * 2, 1)
    if act == "escape":
        return act, data.replace(b"a", b"\\u0061", 1)
    if act == "float":
        return act, data.replace(b"1", b"1e0", 1)
    return act, data.replace(b",", b",,", 1) if act == "comma" else data + b"\n"


def mutate_files(path: Path, chance: random.Random) -> str:
    """Damage to one file, digests left as they are; a copy of it outside may take its place."""
    file = chance.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    act = chance.choice(
        ["flip", "truncate", "remove", "extend", "exchange", "link", "up", "pipe", "folder", "vast"]
    )
    data = bytearray(file.read_bytes())
    elsewhere = path.parent / "elsewhere"
    if act == "up":  # the folder is outside, and a link to it takes its place
        shutil.move(file.parent, elsewhere)
        file.parent.symlink_to(elsewhere)
        return act
    if act == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif act == "truncate":
        del data[chance.randrange(len(data)) :]
    elif act == "extend":
        data += bytes(chance.randrange(1, 9))
    elif act == "exchange":
        other = chance.choice(sorted((path / "blobs" / "sha256").iterdir()))
        data = bytearray(other.read_bytes())
    if act == "vast":  # and sparse
        os.truncate(file, 1 << 42)
        return act
    file.unlink()
    if act == "link":
        elsewhere.write_bytes(data)
        file.symlink_to(elsewhere)
    elif act == "pipe":
        os.mkfifo(file)
    elif act == "folder":
        file.mkdir()
    elif act != "remove":
        file.write_bytes(data)
    return act


def mutate_blob(editor: Editor, chance: random.Random) -> str:
    """Damage to StableHLO or an executable, with its digest and size made right."""
    program, kind = chance.randrange(len(editor.config["programs"])), chance.choice(KINDS)
    data = bytearray(blob_file(editor.path, digest_in(editor, program, kind)).read_bytes())
    act = chance.choice(["flip", "truncate", "give"])
    if act == "flip":
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif act == "truncate":
        del data[chance.randrange(len(data)) :]
    else:
        other = chance.randrange(len(editor.config["programs"]))
        given = digest_in(editor, other, chance.choice(KINDS))
        data = bytearray(blob_file(editor.path, given).read_bytes())
    editor.replace(program, kind, bytes(data))
    return f"{kind} {act}"


KINDS = ["stablehlo", "executable"]


def digest_in(editor: Editor, program: int, kind: str) -> str:
    return str(editor.config["programs"][program][kind]["digest"])


def mutate(path: Path, chance: random.Random) -> str:
    """Change a bundle somewhere; most of the time with all digests made right again."""
    if chance.random() < 0.3:
        return mutate_files(path, chance)
    editor = Editor(path)
    name = chance.choice(["config", "config", "config", "manifest", "index", "top", "blob"])
    if name == "blob":
        acts = [mutate_blob(editor, chance)]
    elif chance.random() < 0.15:
        act, data = mutate_text(spelled(getattr(editor, name), canonical=name == "config"), chance)
        if name == "top":
            (path / "index.json").write_bytes(data)
            return f"top {act}"
        setattr(editor, name, data)
        acts = [act]
    else:
        times = chance.choice([1, 1, 1, 3])
        acts = [mutate_json(getattr(editor, name), chance) for _ in range(times)]
    editor.save()
    return f"{name} {acts[0]}"


@pytest.mark.soak
def test_no_mutated_bundle_is_sound_and_none_raises(
    tmp_path: Path, repetitions: Callable[[int, int], int]
):
    whole = write_sound(tmp_path / "whole", variant_of().config, variant_of(topology="tp2").config)
    attach_report(whole, b'{"report": 1}', (digest_in(Editor(whole), 0, "stablehlo"),))
    assert verified(whole).findings == ()
    sound, chance = meaning(whole), random.Random(23)
    told: Counter[str] = Counter()
    acts: Counter[str] = Counter()
    same: Counter[str] = Counter()
    for number in range(repetitions(200, 2_000)):
        folder = tmp_path / "mutated"
        path = shutil.copytree(whole, folder / "bundle")
        act = mutate(path, chance)
        acts[act] += 1
        started = time.monotonic()
        with watched() as opened:
            seen = verified(path)
        assert time.monotonic() - started < 5, f"mutation {number}: {act}"
        assert outside(opened, path) == [], f"mutation {number}: {act}"
        told.update({f.kind for f in seen.findings if f.is_fault})
        if seen.is_sound:
            same[act] += 1
        if seen.is_sound and not act.startswith("blob"):  # code has no other form to be judged by
            found = meaning(path)  # of fewer variants a bundle is whole too
            assert found, f"mutation {number}: {act}"
            assert all(each in sound for each in found), f"mutation {number}: {act}"
        shutil.rmtree(folder)
    print(*(f"{n:>6} {what}" for what, n in told.most_common()), "sound:", sep="\n")
    print(*(f"{n:>6} of {acts[act]} {act}" for act, n in same.most_common()), sep="\n")
    assert set(told) >= {"layout", "blob", "reference", "config", "plan", "schedule", "executable"}
