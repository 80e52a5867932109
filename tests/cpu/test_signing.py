"""A real bundle, signed, and run in processes that each look for the signature."""

import shutil
from importlib.metadata import version

import pytest

import wanc as library
from tests.cpu.conftest import PROMPT, SEED
from tests.cpu.test_parity import WHOLE
from tests.signed import data_of, found, new_pair, set_entries, sign
from tests.signed import entries as entries_of
from tests.sound import verified
from wanc.bundle.store import open_bundle
from wanc.errors import BundleError
from wanc.signing.toolchain import packages_of


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signed_bundle_runs_and_an_unsigned_one_does_not(wanc, tmp_path, processes):
    bundle = shutil.copytree(wanc.bundle(WHOLE, "tp2"), tmp_path / "bundle")
    one, two = (new_pair(tmp_path / name) for name in ("one", "two"))
    sign(bundle, one)
    assert verified(bundle).is_sound
    required = [two.public_file, one.public_file]
    with library.load(
        bundle, wanc.checkpoint, processes=processes, require_signature=required
    ) as pipeline:
        video = pipeline.generate(PROMPT, steps=1, seed=SEED)
    assert video.frames.shape == (5, 128, 208, 3)
    assert video.record["bundle"] == open_bundle(bundle).digest
    set_entries(bundle, entries_of(bundle)[:1])
    with pytest.raises(BundleError, match="nobody signed it"):
        library.load(bundle, wanc.checkpoint, processes=processes, require_signature=required)


def test_what_compiled_it_is_stated(wanc, tmp_path):
    bundle = shutil.copytree(wanc.bundle(WHOLE, "tp1"), tmp_path / "bundle")
    pair = new_pair(tmp_path / "key")
    sign(bundle, pair)
    packages = packages_of(variant.config for variant in open_bundle(bundle).variants)
    assert [(each.name, each.version, each.runs) for each in packages] == [
        ("jaxlib", version("jaxlib"), True),
        ("wanc", library.__version__, True),
    ]
    (signature,) = found(bundle, pair).provenance
    definition = signature.statement.predicate["buildDefinition"]
    names = [each["name"] for each in definition["resolvedDependencies"]]
    assert {"jaxlib", "wanc", "wanc/targets/cpu.py"} <= {*names}
    (variant,) = definition["externalParameters"]["variants"]
    assert (variant["shape"], variant["isa"]) == (WHOLE, "x86-64-v3")
    assert str(tmp_path).encode() not in data_of(bundle)
