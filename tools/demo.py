"""The main job, start to end: a tiny checkpoint, a bundle for 64 ranks, and a video."""

import shutil
import subprocess
import sys
from pathlib import Path

OUT = Path("out")
FOLDER = OUT / "demo"


def wanc(*arguments: str) -> None:
    """Say and run one command, as a user would."""
    print("\n$ wanc", " ".join(a if " " not in a else f'"{a}"' for a in arguments), flush=True)
    subprocess.run([sys.executable, "-m", "wanc", *arguments], check=True)


def main() -> None:
    checkpoint, bundle = FOLDER / "tiny", FOLDER / "bundle"
    for old in (checkpoint, bundle):
        shutil.rmtree(old, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanc("tiny", str(checkpoint))
    wanc(
        *("compile", "--model", str(checkpoint), "--shape", "208x128x5"),
        *("--topology", "tp4-cp8-cfg2", "--target", "cpu", "-o", str(bundle)),
    )
    wanc("inspect", str(bundle))
    wanc(
        *("run", "--bundle", str(bundle), "--weights", str(checkpoint)),
        *("--prompt", "a lighthouse above a stormy sea", "--steps", "4", "--seed", "1"),
        *("-o", str(OUT / "demo.mp4")),
    )
    print(
        "\nThe weights are random, so the video shows no lighthouse: it shows that every rank ran."
    )


if __name__ == "__main__":
    main()
