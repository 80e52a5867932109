"""Reads a model's numbers from the config files of a checkpoint in diffusers layout.

Reads JSON only: never a weight. Every problem of a checkpoint is reported at once.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wanc.digest import of_json
from wanc.errors import RefusedError
from wanc.spec.model import COLORS, Expert, Model, Task, TextEncoder, Transformer, Vae
from wanc.spec.presets import PRESETS, SAMPLING, TOY_MODELS

Json = dict[str, Any]
T = TypeVar("T")

_SHIPPED = Path(__file__).resolve().parent.parent / "checkpoints"
_MAX_CONFIG_BYTES = 1 << 20
MOST = 1 << 24
"""Of any size that a config may state."""
RESAMPLED = 8
"""Pixels to a latent row of three resamplers, without a patch."""
MOST_LAYERS = 1000
"""Of anything that programs repeat; a plan of more would not end."""


def resolve_model(name: str) -> Model:
    """A preset's name, or a checkpoint directory; raises RefusedError."""
    if name in PRESETS:
        return PRESETS[name]
    directory = Path(name)
    if directory.is_dir():
        return read_checkpoint(directory)
    known = ", ".join(PRESETS)
    raise RefusedError(
        f"model {name!r} is neither a preset ({known}) nor a directory in diffusers layout"
    )


def checkpoint_directory(name: str | Path) -> Path:
    """Where a checkpoint that comes with wanc lies, by its preset's name; any other path as it is.

    ``./toy-t2v`` is a directory of that name.
    """
    return _SHIPPED / name if str(name) in TOY_MODELS else Path(name)


def no_checkpoint(directory: Path) -> str:
    """What to say where none is."""
    by_name = ", ".join(TOY_MODELS)
    return f"{directory}: no such checkpoint directory; those that come with wanc are {by_name}"


def read_checkpoint(directory: Path) -> Model:
    """The model that a checkpoint's config files describe; raises RefusedError."""
    if not directory.is_dir():
        raise RefusedError(no_checkpoint(directory))
    problems: list[str] = []
    index = _read(directory / "model_index.json", problems)
    transformer = _component(directory, "transformer", _transformer, problems)
    text_encoder = _component(directory, "text_encoder", _text_encoder, problems)
    vae = _component(directory, "vae", _vae, problems)
    experts: tuple[Expert, ...] = ("high_noise",)
    if (index or {}).get("transformer_2") not in (None, [], [None, None]):
        experts = ("high_noise", "low_noise")
        second = _component(directory, "transformer_2", _transformer, problems)
        if transformer and second and transformer != second:
            problems.append("transformer_2/config.json: differs from transformer/config.json")
    if transformer and text_encoder and transformer.text_width != text_encoder.width:
        problems.append(
            f"transformer text_dim {transformer.text_width} does not fit text_encoder "
            f"d_model {text_encoder.width}"
        )
    if transformer and vae and transformer.out_channels != vae.z_channels:
        problems.append(
            f"transformer out_channels {transformer.out_channels} does not fit vae "
            f"z_dim {vae.z_channels}: this VAE belongs to another model"
        )
    task = _task(index or {}, transformer, vae, problems)
    boundary = (index or {}).get("boundary_ratio")
    if boundary is not None and not (type(boundary) in (int, float) and 0 <= boundary <= 1):
        problems.append(f"model_index.json: boundary_ratio is {boundary!r}; needs 0 to 1")
    if problems or not (index and transformer and text_encoder and vae):
        raise RefusedError(
            f"{directory} is not a checkpoint that wanc can compile:\n  " + "\n  ".join(problems)
        )
    if len(experts) == 1:
        boundary = None
    elif boundary is None:
        boundary = SAMPLING[task].boundary
    return _known(
        Model(
            name="custom",
            task=task,
            experts=experts,
            transformer=transformer,
            text_encoder=text_encoder,
            vae=vae,
            sampling=replace(SAMPLING[task], boundary=boundary),
        )
    )


def _task(
    index: Json, transformer: Transformer | None, vae: Vae | None, problems: list[str]
) -> Task:
    """From how the pipeline says that images are taken, and what the transformer takes."""
    if transformer is None or vae is None:
        return "t2v"
    seen, noise = transformer.in_channels, transformer.out_channels
    conditioned = noise + vae.condition_channels
    expands = index.get("expand_timesteps") or False
    if seen == noise:
        return "ti2v" if expands else "t2v"
    if seen != conditioned or expands:
        also = ", and model_index.json says expand_timesteps" if expands else ""
        problems.append(
            f"transformer in_channels {seen}{also}: text to video takes {noise}, and image to "
            f"video {conditioned} (noise {noise}, mask {vae.temporal_stride}, condition "
            f"{vae.z_channels})"
        )
    return "i2v"


def _known(model: Model) -> Model:
    """Sampled as a preset with the same networks, and that preset where the boundary is too.

    Else its name is made of its numbers: a directory's never reaches a bundle, so that equal models
    give equal bundles. No config states how a model is sampled, but for the boundary.
    """
    for preset in PRESETS.values():
        if replace(model, name=preset.name, sampling=preset.sampling) == preset:
            model = replace(
                model, sampling=replace(preset.sampling, boundary=model.sampling.boundary)
            )
            if model.sampling == preset.sampling:
                return preset
    digest = of_json(msgspec.to_builtins(model)).removeprefix("sha256:")
    return replace(model, name=f"custom-{digest[:8]}")


def _read(path: Path, problems: list[str]) -> Json | None:
    where = f"{path.parent.name}/{path.name}"
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            problems.append(f"{where}: larger than {_MAX_CONFIG_BYTES} bytes")
            return None
        value = json.loads(path.read_bytes())
    except OSError as error:
        problems.append(f"{where}: {error.strerror or error}")
        return None
    except (ValueError, RecursionError) as error:
        problems.append(f"{where}: not JSON: {error}")
        return None
    if not isinstance(value, dict):
        problems.append(f"{where}: not a JSON object")
        return None
    return value


def _component(
    directory: Path, name: str, build: "Callable[[_Fields], T]", problems: list[str]
) -> T | None:
    config = _read(directory / name / "config.json", problems)
    if config is None:
        return None
    fields = _Fields(config, f"{name}/config.json")
    built = build(fields)
    problems.extend(fields.problems)
    return None if fields.problems else built


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float holds; not NaN, which JSON text may carry."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


class _Fields:
    """Typed look-ups in one config file; gathers what is missing or wrong."""

    def __init__(self, config: Json, where: str) -> None:
        self.config = config
        self.where = where
        self.problems: list[str] = []

    def whole(self, key: str, default: int | None = None, most: int = MOST) -> int:
        value = self.config.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            self._wrong(key, value, f"a positive whole number up to {most}")
            return 1
        return value

    def real(self, key: str, default: float) -> float:
        value = self.config.get(key, default)
        if not _is_finite(value):
            self._wrong(key, value, "a finite number")
            return default
        return float(value)

    def row(self, key: str, of: type[T], default: tuple[T, ...]) -> tuple[T, ...]:
        value = self.config.get(key, default)
        fits = _is_finite if of is float else lambda v: type(v) is of
        if not isinstance(value, list | tuple) or not all(map(fits, value)):
            self._wrong(key, value, f"a list of {of.__name__}")
            return default
        return tuple(of(v) for v in value)  # type: ignore[call-arg]

    def must_be(self, key: str, *allowed: Any, absent: Any = ...) -> None:
        """What is absent has the given value, else the first that is allowed."""
        value = self.config.get(key, allowed[0] if absent is ... else absent)
        if value not in allowed:
            self._wrong(key, value, " or ".join(repr(v) for v in allowed))

    def _wrong(self, key: str, seen: Any, needed: str) -> None:
        self.problems.append(f"{self.where}: {key} is {seen!r}; needs {needed}")


def _transformer(fields: _Fields) -> Transformer:
    fields.must_be("_class_name", "WanTransformer3DModel")
    fields.must_be("cross_attn_norm", True)
    fields.must_be("qk_norm", "rms_norm_across_heads")
    for key in ("added_kv_proj_dim", "image_dim", "pos_embed_seq_len"):
        fields.must_be(key, None)
    fields.must_be("patch_size", [1, 2, 2])
    if fields.whole("attention_head_dim", 128) % 2:
        fields.problems.append(f"{fields.where}: attention_head_dim is odd; RoPE turns pairs")
    return Transformer(
        heads=fields.whole("num_attention_heads", 40),
        head_width=fields.whole("attention_head_dim", 128),
        ffn_width=fields.whole("ffn_dim", 13824),
        layers=fields.whole("num_layers", 40, MOST_LAYERS),
        in_channels=fields.whole("in_channels", 16),
        out_channels=fields.whole("out_channels", 16),
        text_width=fields.whole("text_dim", 4096),
        frequency_width=fields.whole("freq_dim", 256),
        patch_FHW=(1, 2, 2),
        eps=fields.real("eps", 1e-6),
        rope_max_positions=fields.whole("rope_max_seq_len", 1024),
    )


def _text_encoder(fields: _Fields) -> TextEncoder:
    fields.must_be("model_type", "umt5")
    fields.must_be("feed_forward_proj", "gated-gelu")
    return TextEncoder(
        vocabulary=fields.whole("vocab_size"),
        width=fields.whole("d_model"),
        heads=fields.whole("num_heads"),
        head_width=fields.whole("d_kv"),
        ffn_width=fields.whole("d_ff"),
        layers=fields.whole("num_layers", None, MOST_LAYERS),
        position_buckets=fields.whole("relative_attention_num_buckets", 32),
        max_distance_tokens=fields.whole("relative_attention_max_distance", 128),
        eps=fields.real("layer_norm_epsilon", 1e-6),
    )


def _vae(fields: _Fields) -> Vae:
    fields.must_be("_class_name", "AutoencoderKLWan")
    fields.must_be("is_residual", False, True)
    fields.must_be("attn_scales", [])
    fields.must_be("patch_size", None, 1, 2)
    patch = 2 if fields.config.get("patch_size") == 2 else 1
    stride = RESAMPLED * patch
    fields.must_be("in_channels", COLORS * patch**2, absent=COLORS)
    fields.must_be("out_channels", COLORS * patch**2, absent=COLORS)
    fields.must_be("scale_factor_spatial", stride, absent=RESAMPLED)
    fields.must_be("scale_factor_temporal", 4)
    published = PRESETS["wan2.2-t2v-a14b"].vae
    base = fields.whole("base_dim", 96)
    z_channels = fields.whole("z_dim", 16)
    mean = fields.row("latents_mean", float, published.latents_mean)
    std = fields.row("latents_std", float, published.latents_std)
    if not len(mean) == len(std) == z_channels:
        fields.problems.append(
            f"{fields.where}: latents_mean has {len(mean)} and latents_std {len(std)} values; "
            f"z_dim is {z_channels}"
        )
    multiples = fields.row("dim_mult", int, (1, 2, 4, 4))
    downsample = fields.row("temperal_downsample", bool, (False, True, True))
    if len(downsample) != len(multiples) - 1 or sum(downsample) != 2 or len(downsample) != 3:
        fields.problems.append(
            f"{fields.where}: dim_mult {list(multiples)} with temperal_downsample "
            f"{list(downsample)} does not give the strides 8 and 4"
        )
    decoder_base = fields.config.get("decoder_base_dim")
    return Vae(
        z_channels=z_channels,
        base_width=base,
        decoder_base_width=base if decoder_base is None else fields.whole("decoder_base_dim"),
        width_multiples=multiples,
        residual_blocks=fields.whole("num_res_blocks", 2, MOST_LAYERS),
        temporal_downsample=downsample,
        latents_mean=mean,
        latents_std=std,
        spatial_stride=stride,
        temporal_stride=4,
        residual=fields.config.get("is_residual", False),
        patch=patch,
    )
