"""The main job, start to end: the toy model, a bundle for eight ranks, three videos to look at."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

OUT = Path("out/demo")
PROMPTS = {
    "circle.mp4": "a red circle moving left over a dark background",
    "triangle.mp4": "a yellow triangle moving up over a dark background",
    "square.mp4": "a blue square moving right over a light background",
}


def wanc(*arguments: str) -> None:
    """Say and run one command, as a user would."""
    print("\n$ wanc", " ".join(arguments), flush=True)
    subprocess.run([sys.executable, "-m", "wanc", *arguments], check=True)


def main() -> None:
    bundle, videos, prompts = OUT / "bundle", OUT / "videos", OUT / "prompts.jsonl"
    for old in (bundle, videos):
        shutil.rmtree(old, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"prompt": prompt, "output": name}) for name, prompt in PROMPTS.items())
    prompts.write_text("\n".join(lines) + "\n")
    wanc(
        *("compile", "--model", "toy-t2v", "--shape", "208x128x5"),
        *("--topology", "tp2-cp2-cfg2", "--target", "cpu", "-o", str(bundle)),
    )
    wanc("inspect", str(bundle))
    wanc(
        *("run", "--bundle", str(bundle), "--weights", "toy-t2v", "--prompts", str(prompts)),
        *("--seed", "1", "-o", str(videos), "--sheet", str(OUT / "sheet.png")),
    )
    print(f"\nLook at {OUT / 'sheet.png'}, and at the videos in {videos}.")


if __name__ == "__main__":
    main()
