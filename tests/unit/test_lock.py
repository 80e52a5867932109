"""Lock files: what they hold, what differs, and what is not a lock."""

import json
from dataclasses import replace

import pytest

from wanc.bundle.lock import (
    LOCK_VERSION,
    Lock,
    lock_of,
    read_lock,
    write_lock,
)
from wanc.errors import BundleError


def lock(**variants: dict[str, str]) -> Lock:
    return Lock(lock_version=LOCK_VERSION, variants=variants)


def test_a_lock_has_every_program_of_every_variant(made, tmp_path):
    one, two = made(topology="tp1").new.config, made(topology="tp2").new.config
    write_lock(tmp_path / "locks" / "set.lock.json", lock_of([one, two]))
    read = read_lock(tmp_path / "locks" / "set.lock.json")
    assert [*read.variants] == [
        "tiny t2v 208x128x5 tp1 fp32 cpu linear",
        "tiny t2v 208x128x5 tp2 fp32 cpu linear",
    ]
    assert read.variants["tiny t2v 208x128x5 tp2 fp32 cpu linear"] == {
        record.program.name: record.stablehlo.digest for record in two.programs
    }


def test_placements_do_not_fall_together(made):
    config = made().new.config
    other = replace(config, variant=replace(config.variant, placement="trn2-torus"))
    assert len(lock_of([config, other]).variants) == 2


def test_what_was_not_lowered_has_no_lock(made):
    config = made().new.config
    programs = tuple(replace(record, stablehlo=None) for record in config.programs)
    with pytest.raises(BundleError, match="text_encoder was not lowered"):
        lock_of([replace(config, programs=programs)])


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("", "not a lock file"),
        ("[]", "not a lock file"),
        ("[" * 10_000, "not a lock file"),
        ('{"lock_version": 1}', "not a lock file"),
        ('{"lock_version": 1, "variants": {"a": {"b": 3}}}', "not a lock file"),
        ('{"lock_version": 1, "variants": {"a\\u001b[2J": {}}}', "cannot be printed"),
        ('{"lock_version": 1, "variants": {"a": {"b": "sha256:\\u001b[2J"}}}', "cannot be printed"),
        ('{"lock_version": 2, "variants": {}}', "lock version 2; this wanc reads 1"),
        ('{"lock_version": 2, "entries": []}', "lock version 2; this wanc reads 1"),
    ],
)
def test_what_is_no_lock(tmp_path, text, needed):
    (tmp_path / "lock").write_text(text)
    with pytest.raises(BundleError, match=needed):
        read_lock(tmp_path / "lock")
    with pytest.raises(BundleError, match="needs a lock file or a bundle"):
        read_lock(tmp_path / "absent")


def test_a_lock_reads_well_in_a_review(tmp_path):
    write_lock(tmp_path / "lock", lock(b={"x": "sha256:1"}, a={"y": "sha256:2", "x": "sha256:3"}))
    text = (tmp_path / "lock").read_text()
    assert text.endswith("}\n")
    assert len(text.splitlines()) == 12
    assert text.index('"a"') < text.index('"b"')
    assert json.loads(text)["lock_version"] == LOCK_VERSION
