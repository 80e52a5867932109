"""`wanc --help`, `plan`, `inspect`, `check` and `verify` really run without a framework."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.doubles import neuronx_cc
from tests.signed import new_pair, sign
from tests.sound import write_sound
from tests.unit.test_check import runnable
from wanc.bundle.store import write_bundle

HEAVY = {
    *("torch", "jax", "jaxlib", "diffusers", "transformers", "nki", "neuronxcc"),
    *("cryptography", "cyclonedx"),
}
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
    "inspect {bundle} --html {page}",
    "inspect {neff}",
    "inspect {signed}",
    "inspect {signed} --json",
    "verify {signed}",
    "sign --help",
    "key --help",
    "verify {sound}",
    "verify {sound} --json",
    "check {runnable}",
    "check {runnable} --json",
    "check {runnable} --weights {checkpoint}",
    "check {runnable} --weights {checkpoint} --json",
    "diff {bundle} {bundle}",
    "diff {bundle} {bundle} --json --exit-code",
    "doctor",
    "plan --target trn2 --topology auto --cores 64 --shape 832x480x81",
    "plan --target trn2 --from-stage {stage} --shape 832x480x81",
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
    write_bundle(path, [one.new], one.blobs.__getitem__)
    return path


STAGE = """
stage_args:
  - stage_type: diffusion
    engine_args:
      model: Wan-AI/Wan2.2-T2V-A14B-Diffusers
      parallel_config: {tensor_parallel_size: 4, ring_degree: 8, cfg_parallel_size: 2}
"""


@pytest.fixture(scope="module")
def files(bundle, made, tiny_checkpoint):
    """What the lines name."""
    stage, neff, here = (bundle.with_name(name) for name in ("stage.yaml", "x.neff", "runnable"))
    one = runnable(made(), jaxlib=version("jaxlib"))
    write_bundle(here, [one.new], one.blobs.__getitem__)
    stage.write_text(STAGE)
    interface = {"input": [("input0", 4)], "output": [("output0", 4)]}
    neff.write_bytes(neuronx_cc.neff(interface, {}))
    sound = write_sound(bundle.with_name("sound"), made().config)
    signed = write_sound(bundle.with_name("signed"), made().config)
    sign(signed, new_pair(bundle.with_name("key")))
    named = {"bundle": bundle, "stage": stage, "neff": neff, "sound": sound}
    named["page"] = bundle.with_name("page.html")
    return named | {"runnable": here, "checkpoint": tiny_checkpoint, "signed": signed}


@pytest.mark.parametrize("line", LIGHT)
def test_command_stays_light(line, files):
    words = [word.format(**files) for word in line.split()]
    run = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    modules = set(run.stdout.rpartition("MODULES")[2].split())
    assert not HEAVY & modules
    assert ("jinja2" in modules) == ("--html" in words), "templates are for pages alone"
