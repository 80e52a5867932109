"""Installs the double of neuronx-cc, and reads what it wrote."""

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.doubles import neuronx_cc

SCRIPT = """#!{python} -I
import runpy
import sys
from pathlib import Path

runpy.run_path({double!r})["main"](Path(__file__).parent, sys.argv[1:])
"""


def install_neuronx_cc(folder: Path, *acts: str) -> Path:
    """Put a neuronx-cc into a folder, which belongs on PATH; returns the program.

    acts are what the next compiles act out, in order; ``ok``, and what follows the last, compile:
    exit70, diagnosed, error, killed, killed137, killedchild, segfault, hang, ``slow SECONDS``,
    child (leaves one running), nothing, empty, garbage, wrong-size, wrong-count, wrong-lnc.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "neuronx-cc"
    program.write_text(SCRIPT.format(python=sys.executable, double=neuronx_cc.__file__))
    program.chmod(0o755)
    act_next(folder, *acts)
    return program


def act_next(folder: Path, *acts: str) -> None:
    """What the next compiles of a folder's neuronx-cc act out."""
    (folder / "behaviour.json").write_text(json.dumps(acts))


def calls(folder: Path, command: str = "compile") -> list[dict[str, Any]]:
    """The calls of a folder's neuronx-cc, with their arguments, act, folder and environment."""
    path = folder / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [call for call in map(json.loads, lines) if call["arguments"][0] == command]


def input_of(neff: bytes) -> bytes:
    """What the double was given to make this NEFF."""
    with tarfile.open(fileobj=io.BytesIO(neff[1024:]), mode="r:gz") as tar:
        name = next(n for n in tar.getnames() if n.startswith(neuronx_cc.INPUT_MEMBER))
        file = tar.extractfile(name)
        assert file is not None
        return file.read()
