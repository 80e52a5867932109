"""What a shell completes: commands, options, and the values that options take."""

import os
import subprocess
import sys

import pytest

from wanc.cli import main
from wanc.spec.presets import PRESETS


def completed(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash is told of a line whose last word is to be completed."""
    words = line.split(" ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_WANC_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(words) - 1))
        with pytest.raises(SystemExit):
            main([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("wanc comp", ["compile", "compare"]),
        ("wanc cache ", ["ls", "prune"]),
        ("wanc gc --de", ["--delete"]),
        ("wanc compile --model wan", [name for name in PRESETS if name.startswith("wan")]),
        ("wanc plan --target t", ["trn2", "trn3"]),
        ("wanc plan --precision ", ["fp32", "bf16"]),
        ("wanc plan --placement tr", ["trn2-torus"]),
        ("wanc plan --attention a", ["allgather"]),
        ("wanc compile --vae-tiles d", ["diffusers"]),
        ("wanc run --sampler e", ["euler"]),
        ("wanc run --fit ", ["crop", "pad", "stretch"]),
        ("wanc run --preset o", ["official"]),
        ("wanc decode --expert l", []),
        ("wanc run --expert l", ["low_noise"]),
        ("wanc compile --target nothing", []),
    ],
)
def test_values_are_completed(line, found, capsys):
    assert completed(line, capsys) == found


def test_bash_takes_the_script(tmp_path):
    command = tmp_path / "wanc"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m wanc "$@"\n')
    command.chmod(0o755)
    script = """
    eval "$(wanc --show-completion bash)"
    COMP_WORDS=(wanc ver) COMP_CWORD=1
    _wanc_completion wanc
    echo "${COMPREPLY[@]}"
    complete -p wanc
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.stdout.splitlines() == [
        "verify",
        "complete -o default -F _wanc_completion wanc",
    ], done.stderr
