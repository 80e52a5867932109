"""The peer of ``start to mp4``: diffusers' pipeline from a new process to a video."""

import sys

import torch
from diffusers import WanPipeline
from diffusers.utils import export_to_video

from wanc.spec.presets import NEGATIVE_PROMPT

pipe = WanPipeline.from_pretrained(sys.argv[1])
pipe.set_progress_bar_config(disable=True)
frames = pipe(
    prompt="a lighthouse above a stormy sea",
    negative_prompt=NEGATIVE_PROMPT,
    height=128,
    width=208,
    num_frames=9,
    num_inference_steps=4,
    guidance_scale=4.0,
    guidance_scale_2=3.0,
    generator=torch.Generator("cpu").manual_seed(1),
).frames[0]
export_to_video(frames, sys.argv[2], fps=16)
