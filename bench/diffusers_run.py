"""The peer of ``start to mp4``: diffusers' pipeline from a new process to a video."""

import argparse
from pathlib import Path

import torch
from diffusers import WanPipeline
from diffusers.utils import export_to_video

from wanc.run.request import Guidance
from wanc.spec.presets import NEGATIVE_PROMPT
from wanc.spec.shape import Shape


def main() -> None:
    """The options are those of ``wanc run``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--shape", type=Shape.parse, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--guidance", type=Guidance.parse, required=True)
    parser.add_argument("--fps", type=int, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    pipe = WanPipeline.from_pretrained(asked.weights)
    pipe.set_progress_bar_config(disable=True)
    frames = pipe(
        prompt=asked.prompt,
        negative_prompt=NEGATIVE_PROMPT,
        height=asked.shape.height_px,
        width=asked.shape.width_px,
        num_frames=asked.shape.frames,
        num_inference_steps=asked.steps,
        guidance_scale=asked.guidance.high,
        guidance_scale_2=asked.guidance.low,
        generator=torch.Generator("cpu").manual_seed(asked.seed),
    ).frames[0]
    export_to_video(frames, str(asked.output), fps=asked.fps)


if __name__ == "__main__":
    main()
