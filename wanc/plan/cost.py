"""Predicted seconds of a variant on an accelerator: a roofline of each part of its work.

A part takes as long as the scarcest of compute, HBM and links; parts follow one another, and every
call of a program adds a launch. Two predictions: attention as a kernel, which is calibrated on
published runs, and attention as plain StableHLO, which writes its scores to HBM and which nobody
has published. HBM and links count at their published peaks, which no program reaches.

Knows numbers of chips and work. Knows nothing of Wan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wanc.plan.work import StageWork, Work
from wanc.spec.target import Accelerator

BF16_EFFICIENCY = 0.34
"""Part of the bf16 peak that matmuls and attention kernels reach.

From public runs of Wan2.2 on trn2 with attention kernels: mean of what the three at 720p need once
launches and links are taken off (TI2V 5B 1280x704x121, 50 steps: denoising 16.8 s at tp4-cp8-cfg2,
68.4 s in all at tp4-cp4; T2V A14B 1280x720x81, 40 steps, tp8-cp4-cfg2: 157.8 s in all). Steps'
FLOPs over the whole time of a run are 0.28 to 0.31 of the peak.
"""

FP32_EFFICIENCY = 0.80
"""Part of the fp32 peak that the VAE's convolutions reach.

From one public run: TI2V 5B 1280x704x121 decodes in 4.3 s on 64 cores, one tile a core. That is so
near the peak that the run may have computed in bf16; then this is too much for fp32.
"""

LAUNCH_SECONDS = 0.008
"""Of every call of a program: about 8 ms a launch, reported of one program a block on trn2."""

HOST_SECONDS_PER_PIXEL = 2.4 / (1280 * 704 * 121)
"""Of the video: tokenizer, sampler, stitching, writing the file.

From the same run of 23.6 s in all: what denoising, decoding and text encoding leave.
"""

Limit = Literal["compute", "memory", "links", "launches"]
Attention = Literal["kernels", "stablehlo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """Predicted time, and the share of it that each resource limits."""

    seconds: float
    compute_seconds: float
    memory_seconds: float
    links_seconds: float
    launches_seconds: float
    limited_by: Limit
    """The largest share."""

    def __add__(self, other: "Time") -> "Time":
        return _time({limit: self.share(limit) + other.share(limit) for limit in _LIMITS})

    def __mul__(self, times: float) -> "Time":
        return _time({limit: self.share(limit) * times for limit in _LIMITS})

    def share(self, limit: Limit) -> float:
        """Seconds that a resource limits."""
        seconds: float = getattr(self, f"{limit}_seconds")
        return seconds


_LIMITS: tuple[Limit, ...] = ("compute", "memory", "links", "launches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Times of one video at the model's default steps, guided, with warm programs and weights."""

    text: Time
    """Text encoding and every expert's prompt keys and values."""
    image: Time | None
    """Image encoding, where images are taken."""
    step: Time
    """One step of denoising, both guidance branches; experts cost the same."""
    denoise: Time
    decode: Time
    host_seconds: float
    seconds: float
    """The whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Predictions for both attentions. Only that with kernels is calibrated."""

    steps: int
    kernels: Prediction
    stablehlo: Prediction


def predict(
    accelerator: Accelerator, works: Sequence[StageWork], *, steps: int, pixels: int
) -> Cost:
    """Times of a variant's stages, of so many steps, and of a video of so many pixels."""
    host_seconds = pixels * HOST_SECONDS_PER_PIXEL

    def one(attention: Attention) -> Prediction:
        times = {work.name: stage_time(accelerator, work, attention) for work in works}
        text = times["encode_text"] + times["context"]
        denoise = times["step"] * steps
        image = times.get("encode_image")
        stages = (text, denoise, times["decode"], *([image] if image else []))
        return Prediction(
            text=text,
            image=image,
            step=times["step"],
            denoise=denoise,
            decode=times["decode"],
            host_seconds=host_seconds,
            seconds=sum(stage.seconds for stage in stages) + host_seconds,
        )

    return Cost(steps=steps, kernels=one("kernels"), stablehlo=one("stablehlo"))


def stage_time(accelerator: Accelerator, work: StageWork, attention: Attention) -> Time:
    """Time of a stage: every part at its own limit, and the launches."""
    shares: dict[Limit, float] = {"launches": work.launches * LAUNCH_SECONDS}
    for part in work.parts.values():
        needed = _needed(accelerator, part, attention)
        limit = max(needed, key=lambda name: needed[name])
        shares[limit] = shares.get(limit, 0.0) + needed[limit]
    return _time(shares)


def _needed(accelerator: Accelerator, work: Work, attention: Attention) -> dict[Limit, float]:
    """Seconds that each resource of a logical core, its equal share of the chip, would need."""
    chip, cores = accelerator.chip, accelerator.fabric.cores_per_chip
    scores = work.score_bytes if attention == "stablehlo" else 0
    compute = work.bf16_flops / (chip.bf16_flops_per_second * BF16_EFFICIENCY)
    compute += work.fp32_flops / (chip.fp32_flops_per_second * FP32_EFFICIENCY)
    return {
        "compute": cores * compute,
        "memory": cores * (work.hbm_bytes + scores) / chip.hbm_bytes_per_second,
        "links": cores * work.sent_bytes / chip.link_bytes_per_second,
    }


def _time(shares: dict[Limit, float]) -> Time:
    return Time(
        seconds=sum(shares.values()),
        compute_seconds=shares.get("compute", 0.0),
        memory_seconds=shares.get("memory", 0.0),
        links_seconds=shares.get("links", 0.0),
        launches_seconds=shares.get("launches", 0.0),
        limited_by=max(shares, key=lambda limit: shares[limit]),
    )
