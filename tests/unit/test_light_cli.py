"""`wanc --help`, `plan` and `inspect` really run without a framework or a compiler."""

import subprocess
import sys

import pytest

from wanc.bundle.store import write_bundle

HEAVY = {"torch", "jax", "jaxlib", "diffusers", "transformers", "nki", "neuronxcc"}
LIGHT = [
    "--help",
    "plan --model wan2.2-t2v-a14b --shape 832x480x81 --topology tp4-cp8-cfg2",
    "plan --model wan2.2-t2v-a14b --shape 832x480x81 --json",
    "compile --help",
    "run --help",
    "inspect {bundle}",
    "inspect {bundle} 1",
    "inspect {bundle} 1 dit_blocks",
    "inspect {bundle} --json",
]
CODE = """
import sys
from wanc.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
print("MODULES", *sys.modules)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("light") / "bundle"
    one = made(topology="tp2-cp2")
    write_bundle(path, [one.new], one.blobs)
    return path


@pytest.mark.parametrize("line", LIGHT)  # add verify, diff and check with them
def test_command_stays_light(line, bundle):
    words = [word.format(bundle=bundle) for word in line.split()]
    run = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert not HEAVY & set(run.stdout.rpartition("MODULES")[2].split())
