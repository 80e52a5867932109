"""Runs diffusers' own pipeline on a checkpoint, and shows what it computes on the way.

The pipeline does all of it: this module only chooses its values and looks on. Knows nothing of
bundles, ranks or programs.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from wanc.arrays import Array
from wanc.compare.metrics import check_installed
from wanc.errors import RequestError, WeightsError
from wanc.plan.tiles import Tile, TilePlan
from wanc.run.observe import CONDITION, LATENTS, PIXELS, TEXT, Observe
from wanc.run.request import SamplingValues
from wanc.run.sampler import make_scheduler
from wanc.run.tiles import stitch
from wanc.spec.model import TEXT_TOKENS, Task
from wanc.spec.shape import Shape

Picture = Image.Image | Array | Tensor
"""An image: Pillow's, which diffusers stretches where it has another size than the video, or
[3, h, w] in [-1, 1], of the 256 levels that files have."""

_ABOVE_ALL = 2.0
"""A boundary that every timestep lies below."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRequest:
    """What diffusers is asked for; the same in every dtype."""

    task: Task
    values: SamplingValues
    prompt: str
    negative_prompt: str
    shape: Shape
    image: Picture | None = None
    last_image: Picture | None = None
    noise: Tensor | None = None
    """[1, C, F, H, W] fp32; None has the pipeline draw it from the values' seed."""
    tiles: TilePlan | None = None
    """Where pictures are encoded and decoded tile by tile; None for whole ones. Tiling is part of
    what a bundle computes, and moves pixels by more than rounding does."""


def run_reference(
    weights: Path,
    request: ReferenceRequest,
    *,
    dtype: Literal["fp32", "bf16"],
    observe: Observe,
) -> None:
    """Run diffusers on a checkpoint; raises RequestError, WeightsError.

    The VAE computes in fp32 in either dtype, on every device.
    """
    run_pipeline(load_pipeline(weights, request, dtype=dtype), request, observe)


def load_pipeline(
    weights: Path, request: ReferenceRequest, *, dtype: Literal["fp32", "bf16"]
) -> Any:
    """The pipeline of the request's task; raises RequestError, WeightsError."""
    _check_images(request)
    check_installed("running diffusers", "accelerate")
    import diffusers

    name = "WanPipeline" if request.image is None else "WanImageToVideoPipeline"
    try:
        with _quiet():
            pipe: Any = getattr(diffusers, name).from_pretrained(
                weights,
                dtype={"default": _DTYPES[dtype], "vae": torch.float32},
                local_files_only=True,
            )
    except Exception as error:  # whatever a damaged file makes the library raise
        raise WeightsError(f"{weights}: diffusers' {name} cannot load it: {error}") from error
    pipe.set_progress_bar_config(disable=True)
    return pipe


@torch.no_grad()
def run_pipeline(pipe: Any, request: ReferenceRequest, observe: Observe) -> None:
    """Run a pipeline that load_pipeline gave; raises RequestError."""
    guidance = _set_sampling(pipe, request.values)
    embeddings = pipe.encode_prompt(
        request.prompt,
        request.negative_prompt,
        do_classifier_free_guidance=guidance["guidance_scale"] > 1,
        max_sequence_length=TEXT_TOKENS,
    )
    branches = [branch for branch in embeddings if branch is not None]
    observe(TEXT, 0, _fp32(torch.cat(branches)))

    def after_step(_: Any, index: int, timestep: Tensor, state: dict[str, Tensor]) -> Any:
        observe(LATENTS, index + 1, _fp32(state["latents"]))
        return state

    with _looking_on(pipe, request, observe):
        pipe(
            **_arguments(request),
            **guidance,
            prompt_embeds=embeddings[0],
            negative_prompt_embeds=embeddings[1],
            output_type="pt",
            callback_on_step_end=after_step,
        )


def _check_images(request: ReferenceRequest) -> None:
    task, first, last = request.task, request.image, request.last_image
    if task == "i2v" and first is None:
        raise RequestError("task i2v: needs the image that the video starts from")
    if task == "t2v" and first is not None:
        raise RequestError("task t2v: takes no image; i2v and ti2v do")
    if last is not None and (first is None or task != "i2v"):
        raise RequestError(f"task {task}: takes no last image; i2v does, beside a first one")


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars and no advice of the libraries: what a run shows is for its caller to say."""
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    with ExitStack() as undo:
        for logging in (of_diffusers, of_transformers):
            undo.callback(logging.set_verbosity, logging.get_verbosity())
            logging.set_verbosity_error()
            if logging.is_progress_bar_enabled():
                undo.callback(logging.enable_progress_bar)
                logging.disable_progress_bar()
        yield


def _set_sampling(pipe: Any, values: SamplingValues) -> dict[str, Any]:
    """Give the pipeline its scheduler and its boundary; returns its arguments of guidance."""
    pipe.scheduler = make_scheduler(values)
    if values.sampler != "unipc":  # its sigmas are given, and the pipeline would ask for others
        pipe.scheduler.set_timesteps = lambda *_, **__: None
    first, second, boundary = values.guidance_high, values.guidance_low, values.boundary
    if values.only == "low_noise":
        first, boundary = second, _ABOVE_ALL
    elif values.only == "high_noise" or pipe.transformer_2 is None:
        second, boundary = first, None
    if (first > 1 > second) or (second > 1 >= first):
        raise RequestError(
            f"guidance high={first:g}, low={second:g}: diffusers guides both experts or neither, "
            "as the high-noise one says; compare with both above 1, or with both at most 1"
        )
    pipe.register_to_config(boundary_ratio=boundary)
    given: dict[str, Any] = {"guidance_scale": first}
    return given if boundary is None else {**given, "guidance_scale_2": second}


@contextmanager
def _looking_on(pipe: Any, request: ReferenceRequest, observe: Observe) -> Iterator[None]:
    """Observe encoded images and decoded pixels where the pipeline computes them, maybe in tiles.

    Its methods are replaced by an attribute of the same name, which goes again.
    """
    vae, prepare = pipe.vae, pipe.prepare_latents
    encode, decode = vae.encode, vae.decode
    tiles = request.tiles if request.tiles and len(request.tiles.tiles) > 1 else None

    def decoded(z_BCFHW: Tensor, return_dict: bool = True) -> Any:
        z = z_BCFHW
        pixels = _decode_tiles(vae, decode, z, tiles) if tiles else decode(z).sample
        observe(PIXELS, 0, _fp32(pixels.clamp(-1, 1)))
        return (pixels,)

    def prepared(*args: Any, **how: Any) -> Any:
        made = prepare(*args, **how)
        if request.image is not None:
            observe(CONDITION, 0, _fp32(made[1][:, -vae.config.z_dim :]))  # after the mask
        return made

    vae.decode, pipe.prepare_latents = decoded, prepared
    if tiles:
        stride = vae.config.scale_factor_spatial
        vae.encode = lambda pixels: _encode_tiles(encode, pixels, tiles, stride)
    try:
        yield
    finally:
        for owner, name in ((vae, "decode"), (vae, "encode"), (pipe, "prepare_latents")):
            vars(owner).pop(name, None)


def _decode_tiles(vae: Any, decode: Any, z_BCFHW: Tensor, plan: TilePlan) -> Tensor:
    """Decode tiles apart and blend them; a tile is not clamped before it is blended."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

    frames: list[Tensor] = []
    hook = vae.decoder.register_forward_hook(lambda _, __, given: frames.append(given))
    parts = []
    try:
        for tile in plan.tiles:
            frames.clear()
            decode(z_BCFHW[..., *_span(tile, 1)])
            part = torch.cat(frames, dim=2)
            if vae.config.patch_size is not None:
                part = unpatchify(part, patch_size=vae.config.patch_size)
            parts.append(_fp32(part))
    finally:
        hook.remove()
    stride = vae.config.scale_factor_spatial
    return torch.from_numpy(stitch(parts, plan, grain=stride, px_per_latent=stride))


def _encode_tiles(encode: Any, pixels_BCFHW: Tensor, plan: TilePlan, stride: int) -> Any:
    """Encode tiles apart and blend what the encoder gives."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
    from diffusers.models.modeling_outputs import AutoencoderKLOutput

    parts = [
        _fp32(encode(pixels_BCFHW[..., *_span(tile, stride)]).latent_dist.parameters)
        for tile in plan.tiles
    ]
    moments = torch.from_numpy(stitch(parts, plan, grain=1, px_per_latent=stride))
    return AutoencoderKLOutput(latent_dist=DiagonalGaussianDistribution(moments))


def _span(tile: Tile, grain: int) -> tuple[slice, slice]:
    """A tile's rows and columns, of so many for one latent one."""
    rows = slice(tile.row * grain, (tile.row + tile.rows) * grain)
    return rows, slice(tile.column * grain, (tile.column + tile.columns) * grain)


def _arguments(request: ReferenceRequest) -> dict[str, Any]:
    """What the pipeline takes of a request, but for prompts and guidance."""
    images = {"image": request.image, "last_image": request.last_image}
    return {
        **{name: _picture(image) for name, image in images.items() if image is not None},
        "height": request.shape.height_px,
        "width": request.shape.width_px,
        "num_frames": request.shape.frames,
        "num_inference_steps": request.values.steps,
        "latents": request.noise,
        "generator": torch.Generator("cpu").manual_seed(request.values.seed),
    }


def _picture(image: Picture) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    levels_CHW = np.round((np.asarray(image) + 1) * 127.5).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(levels_CHW.transpose(1, 2, 0)))


def _fp32(tensor: Tensor) -> Array:
    array: Array = tensor.detach().float().cpu().numpy()
    return array
