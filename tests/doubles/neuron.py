"""Installs the doubles of neuronx-cc and of nrtpy, and reads what they wrote."""

import importlib
import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import neuronx_cc, nrtpy_double
from wanc.machine import Machine, this_machine

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


# --- nrtpy ----------------------------------------------------------------------------------------

SITE = """\
'''Lets every process that has this folder on its path find the double's devices.'''

from dataclasses import replace
from pathlib import Path

import wanc.machine

here = wanc.machine.this_machine
wanc.machine.this_machine = lambda *given: replace(here(*given), root=Path({root!r}))
"""


@dataclass(frozen=True)
class Nrtpy:
    """A folder that belongs on PYTHONPATH: the package, and a root with devices and libnrt."""

    folder: Path

    @property
    def machine(self) -> Machine:
        """This machine, with the double's devices and packages."""
        here = this_machine()
        packages = (str(self.folder), *here.packages)
        return replace(here, root=self.folder / "root", packages=packages)

    @property
    def environment(self) -> dict[str, str]:
        """For other processes."""
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

    def act_next(self, *acts: str) -> None:
        """What happens next, as the double's own page says."""
        (self.folder / "behaviour.json").write_text(json.dumps(acts))

    def calls(self, what: str = "") -> list[dict[str, Any]]:
        """What was done, all of it or of one kind."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if what in ("", call["what"])]

    @contextmanager
    def imported(self) -> Iterator[None]:
        """While it lasts, ``nrtpy`` is the double, and this machine has its devices."""
        with pytest.MonkeyPatch.context() as patch:
            for name in {*os.environ, "NEURON_RT_VISIBLE_CORES"}:  # nrtpy itself sets that one
                if name.startswith("NEURON_"):
                    patch.setenv(name, "")
                    patch.delenv(name)
            patch.syspath_prepend(self.folder)
            patch.setattr("wanc.runtime.runtime.this_machine", lambda: self.machine)
            importlib.invalidate_caches()
            sys.modules.pop("nrtpy", None)
            try:
                yield
            finally:
                module = sys.modules.pop("nrtpy", None)
                if module is not None:
                    module.reset()


def install_nrtpy(
    folder: Path,
    executables: Mapping[str, Path],
    *acts: str,
    chips: int = 16,
    name: str = "Trainium2",
    version: str = "2.35.3.0",
) -> Nrtpy:
    """Put an nrtpy into a folder, with chips and the library under it.

    executables has, for the digest of each NEFF, a file of XLA:CPU's executable of the same
    program. acts are as for ``act_next``.
    """
    package, info = folder / "nrtpy", folder / f"nrtpy-{version}.dist-info"
    for made in (package, info):
        made.mkdir(parents=True)
    shutil.copyfile(nrtpy_double.__file__, package / "__init__.py")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nrtpy\nVersion: {version}\n")
    (info / "RECORD").write_text(f"nrtpy/__init__.py,,\n{info.name}/METADATA,,\n")
    root = folder / "root"
    files = {f"dev/neuron{number}": "" for number in range(chips)}
    files |= {
        f"opt/aws/neuron/lib/libnrt.so.{version}": "",
        "sys/module/neuron/version": "2.31.0.0\n",
        "sys/devices/virtual/neuron_device/neuron0/info/architecture/device_name": f"{name}\n",
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "proc").symlink_to("/proc")
    (root / "sys/fs").symlink_to("/sys/fs")
    (folder / "sitecustomize.py").write_text(SITE.format(root=str(root)))
    known = {digest: str(path.absolute()) for digest, path in executables.items()}
    (folder / "executables.json").write_text(json.dumps(known))
    made_here = Nrtpy(folder)
    made_here.act_next(*acts)
    return made_here
