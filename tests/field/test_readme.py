"""README.md names a test for every case; the tests are there."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_test_that_is_named_is_there():
    named = re.findall(r"`([\w./]+\.py)::(\w+)`", (HERE / "README.md").read_text())
    assert len(named) > 40
    missing = [
        f"{file}::{test}"
        for file, test in named
        if f"def {test}(" not in (HERE / file).read_text(encoding="utf-8")
    ]
    assert not missing
