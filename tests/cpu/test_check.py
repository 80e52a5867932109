"""wanc check and wanc run on a real bundle and a real checkpoint: they never disagree."""

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.test_parity import WHOLE
from wanc.bundle.store import open_bundle
from wanc.cli import main
from wanc.errors import BundleError, WeightsError
from wanc.machine import Machine
from wanc.run.check import check_bundle


def test_what_check_says_is_ok_is_loaded(wanc: Any, capsys: Any) -> None:
    bundle = wanc.bundle(WHOLE, "tp1")
    with pytest.raises(SystemExit) as ended:
        main(["check", str(bundle), "--weights", str(wanc.checkpoint)])
    assert not ended.value.code
    assert "1 of 1 variant can run here" in capsys.readouterr().out
    with closing(wanc.session(bundle)):
        pass


def truncate(bundle: Path, checkpoint: Path) -> None:
    (file,) = (checkpoint / "transformer").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])


def add_and_drop_tensors(bundle: Path, checkpoint: Path) -> None:
    from safetensors.numpy import load_file, save_file

    (file,) = (checkpoint / "vae").glob("*.safetensors")
    tensors = load_file(file)
    tensors["odd"] = tensors.pop("decoder.conv_in.bias")
    tensors["decoder.conv_out.bias"] = tensors["decoder.conv_out.bias"][:2]
    save_file(tensors, file, metadata={"format": "pt"})


def no_json(bundle: Path, checkpoint: Path) -> None:
    (checkpoint / "vae/config.json").write_bytes(b"\xff{")


def flip_byte(bundle: Path, checkpoint: Path) -> None:
    blobs = (bundle / "blobs/sha256").iterdir()
    blob = max(blobs, key=lambda file: file.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "what", "said", "kind"),
    [
        (truncate, "tensors", "transformer", WeightsError),
        (add_and_drop_tensors, "tensors", "missing", WeightsError),
        (no_json, "networks", "not JSON", WeightsError),
        (flip_byte, "executables", "damaged", BundleError),
    ],
)
def test_what_check_finds_is_what_load_refuses(
    wanc: Any,
    tmp_path: Path,
    damage: Callable[[Path, Path], None],
    what: str,
    said: str,
    kind: type[Exception],
) -> None:
    bundle, checkpoint = tmp_path / "bundle", tmp_path / "checkpoint"
    shutil.copytree(wanc.bundle(WHOLE, "tp1"), bundle)
    shutil.copytree(wanc.checkpoint, checkpoint)
    damage(bundle, checkpoint)
    (check,) = check_bundle(open_bundle(bundle), checkpoint)
    (fault,) = [each for each in check.requirements if each.verdict == "incompatible"]
    assert fault.what == what
    assert said in fault.found
    if what != "networks":  # configs are compared before load
        with pytest.raises(kind):
            replace(wanc, checkpoint=checkpoint).session(bundle)


def test_another_jaxlib_is_found_and_refused(
    wanc: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = wanc.bundle(WHOLE, "tp1")
    monkeypatch.setattr(Machine, "package", lambda machine, name: None)
    with pytest.raises(SystemExit) as ended:
        main(["check", str(bundle), "--json"])
    assert ended.value.code == BundleError.exit_code
    (variant,) = json.loads(capsys.readouterr().out)["variants"]
    (fault,) = [each for each in variant["requirements"] if each["verdict"] != "ok"]
    assert (fault["what"], fault["found"]) == ("jaxlib", "not installed")
    with pytest.raises(BundleError, match=r"need jaxlib 0\.10\.2, found not installed"):
        wanc.session(bundle)
