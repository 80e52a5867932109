"""wanc diff --text on StableHLO as bundles hold it, read by jaxlib in a process of its own."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.artifacts import artifact
from tests.unit.conftest import variant_of
from wanc.bundle.config import Blob
from wanc.bundle.store import NewVariant, write_bundle
from wanc.cli import main
from wanc.digest import of_bytes

NEGATE = "%1 = stablehlo.negate %0 : tensor<4xf32>"
REDUCE = """%2 = "stablehlo.all_reduce"(%1) ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0]]> : tensor<1x1xi64>} : (tensor<4xf32>) -> tensor<4xf32>"""


def program(between: str = "", operands: str = "%2, %x", constant: str = "1.0") -> bytes:
    return artifact(
        f"""module @head {{
          func.func public @main(
              %x: tensor<4xf32> {{wanc.name = "x"}}, %y: tensor<4xf32> {{wanc.name = "y"}}
          ) -> (tensor<4xf32> {{wanc.name = "out"}}) {{
            %0 = stablehlo.add %x, %y : tensor<4xf32>
            {NEGATE}
            {REDUCE}
            {between}
            %3 = stablehlo.subtract {operands} : tensor<4xf32>
            %4 = stablehlo.constant dense<{constant}> : tensor<4xf32>
            %5 = stablehlo.multiply %3, %4 : tensor<4xf32>
            return %5 : tensor<4xf32>
          }}
        }}"""
    )


Write = Callable[[str, bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name, artifact): a bundle whose two variants have it for their dit_head."""

    def write(name: str, data: bytes) -> Path:
        made, blobs = [variant_of(), variant_of(topology="cp2")], {of_bytes(data): data}
        for one in made:
            blobs |= one.blobs
            records = [
                replace(record, stablehlo=Blob(digest=of_bytes(data), size_bytes=len(data)))
                if record.program.name == "dit_head"
                else record
                for record in one.config.programs
            ]
            new = NewVariant(
                config=replace(one.config, programs=tuple(records)),
                executable_type=one.new.executable_type,
            )
            write_bundle(tmp_path / name, [new], blobs.__getitem__)
        return tmp_path / name

    return write


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["diff", *map(str, arguments)])
    return int(end.value.code or 0)


def texts(capsys: Any, *arguments: object) -> list[dict[str, Any]]:
    assert run(*arguments, "--text", "--json") == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["texts"]
    return found


def marked(text: dict[str, Any]) -> list[str]:
    return [line[0] + line[1:].strip() for line in text["lines"] if line[0] in "-+"]


def test_an_operation_in_the_middle_is_all_that_shows(write: Write, capsys: Any) -> None:
    between = "%new = stablehlo.abs %2 : tensor<4xf32>"
    a, b = write("a", program()), write("b", program(between))
    (text,) = texts(capsys, a, b)
    assert text["programs"] == ["dit_head"]
    assert text["operators"] == [{"name": "stablehlo.abs", "before": 0, "after": 1}]
    assert marked(text) == ["+%3 = stablehlo.abs %2 : tensor<4xf32>"]
    assert text["rewired"] == 0
    assert run(a, b, "--text", "--program", "dit_head") == 0
    out = capsys.readouterr().out
    assert "stablehlo.abs       0      1" in out
    assert "\n+    %3 = stablehlo.abs %2 : tensor<4xf32>\n" in out
    assert out.count("@@ -") == 1  # both variants have it
    assert run(a, b, "--text", "--program", "dit_blocks") == 0
    assert capsys.readouterr().out.endswith("\nno text differs\n")


def test_other_operands_alone_show(write: Write, capsys: Any) -> None:
    a, b = write("a", program()), write("b", program(operands="%x, %2"))
    (text,) = texts(capsys, a, b)
    assert text["operators"] == []
    assert marked(text) == [
        "-%3 = stablehlo.subtract %2, %arg0 : tensor<4xf32>",
        "+%3 = stablehlo.subtract %arg0, %2 : tensor<4xf32>",
    ]
    assert text["rewired"] == 1
    run(a, b, "--text")
    out = capsys.readouterr().out
    assert "as many of every operator" in out
    assert "1 line with other operands alone" in out


def test_values_of_constants_show(write: Write, capsys: Any) -> None:
    (text,) = texts(capsys, write("a", program()), write("b", program(constant="[1., 2., 3., 4.]")))
    assert [line[-22:] for line in marked(text)] == [
        "0000e+00> : tensor<4xf32>"[-22:],
        "0000e+00]> : tensor<4xf32>"[-22:],
    ]


def test_what_is_no_stablehlo_is_a_damaged_bundle(write: Write, capsys: Any) -> None:
    good, bad = write("a", program()), write("b", b"garbage")
    assert run(good, bad) == 0
    assert run(good, bad, "--text") == 5
    assert "jaxlib cannot read a program's StableHLO" in capsys.readouterr().err


def crash(artifact: bytes) -> None:
    os.abort()


def test_an_artifact_that_crashes_its_reader_is_a_damaged_bundle(
    write: Write, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wanc.lower.text.text_of", crash)
    assert run(write("a", program()), write("b", program(constant="2.0")), "--text") == 5
    assert "the process that read it crashed" in capsys.readouterr().err


def test_a_blob_that_was_changed_is_a_damaged_bundle(write: Write, capsys: Any) -> None:
    data = program(constant="2.0")
    a, b = write("a", program()), write("b", data)
    file = b / "blobs" / "sha256" / of_bytes(data).removeprefix("sha256:")
    file.write_bytes(program(constant="3.0"))
    assert run(a, b, "--text") == 5
    assert "is damaged" in capsys.readouterr().err
