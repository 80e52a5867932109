"""Writes a random checkpoint: experts, text encoder, VAE, in diffusers layout.

Knows nothing of what is done with it; every size comes from a ``Model``, by default TINY.
"""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wanc.errors import RequestError, RunError
from wanc.files import check_folder
from wanc.spec.model import COLORS, EXPERT_COMPONENTS, TRAIN_TIMESTEPS, Model
from wanc.spec.presets import TINY
from wanc.tiny_tokenizer import TOKENIZER_CLASS, write_tokenizer
from wanc.tiny_weights import draw


def write_tiny_checkpoint(
    directory: Path,
    *,
    model: Model = TINY,
    seed: int = 0,
    shards: int = 1,
    on_progress: Callable[[str], None] | None = None,
) -> None:
    """Writes a checkpoint that ``WanPipeline.from_pretrained`` loads.

    Each model is written as ``shards`` safetensors files. The directory appears whole or not at
    all; raises RequestError when it exists with something in it, or for an illegal ``shards``.
    """
    directory = directory.resolve()
    _check_free(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        check_folder(directory.parent)
    except OSError as error:
        raise RunError(f"cannot write {directory}: {error.strerror or error}") from error
    with TemporaryDirectory(prefix=f".{directory.name}.", dir=directory.parent) as scratch:
        written = Path(scratch) / directory.name
        for component, network in networks(model).items():
            (written / component).mkdir(parents=True)
            _write_config(written / component, network)
            size_bytes = _write_weights(
                written / component,
                network,
                seed=seed,
                shards=shards,
                heads=model.transformer.heads,
            )
            if on_progress:
                on_progress(f"{component}: {size_bytes / 1e6:.1f} MB")
        (written / "tokenizer").mkdir()
        write_tokenizer(written / "tokenizer", vocabulary=model.text_encoder.vocabulary)
        scheduler(model).save_config(written / "scheduler")
        _write_json(written / "model_index.json", model_index(model))
        written.rename(directory)


def _check_free(directory: Path) -> None:
    if directory == Path.cwd():
        seen = "is the working directory"
    elif directory.is_dir():
        count = sum(1 for _ in directory.iterdir())
        if not count:
            return
        seen = f"already holds {count} {'entry' if count == 1 else 'entries'}"
    elif directory.exists():
        seen = "is a file"
    else:
        return
    raise RequestError(f"{directory} {seen}; give the name of a new or an empty directory")


def networks(model: Model, *, device: str = "meta") -> dict[str, Any]:
    """The networks by component, freshly initialised; on the meta device they have shapes only."""
    import torch
    from transformers import UMT5Config, UMT5EncoderModel

    dit, text, vae = model.transformer, model.text_encoder, model.vae
    models: dict[str, Any] = {}
    with torch.device(device):
        for expert in model.experts:
            models[EXPERT_COMPONENTS[expert]] = _diffusers().WanTransformer3DModel(
                patch_size=dit.patch_FHW,
                num_attention_heads=dit.heads,
                attention_head_dim=dit.head_width,
                in_channels=dit.in_channels,
                out_channels=dit.out_channels,
                text_dim=dit.text_width,
                freq_dim=dit.frequency_width,
                ffn_dim=dit.ffn_width,
                num_layers=dit.layers,
                eps=dit.eps,
                rope_max_seq_len=dit.rope_max_positions,
            )
        config = UMT5Config(
            vocab_size=text.vocabulary,
            d_model=text.width,
            d_kv=text.head_width,
            d_ff=text.ffn_width,
            num_layers=text.layers,
            num_heads=text.heads,
            relative_attention_num_buckets=text.position_buckets,
            relative_attention_max_distance=text.max_distance_tokens,
            layer_norm_epsilon=text.eps,
            architectures=[UMT5EncoderModel.__name__],
            dtype="float32",
        )
        models["text_encoder"] = UMT5EncoderModel(config)
        models["vae"] = _diffusers().AutoencoderKLWan(
            base_dim=vae.base_width,
            decoder_base_dim=vae.decoder_base_width,
            z_dim=vae.z_channels,
            dim_mult=list(vae.width_multiples),
            num_res_blocks=vae.residual_blocks,
            temperal_downsample=list(vae.temporal_downsample),
            latents_mean=list(vae.latents_mean),
            latents_std=list(vae.latents_std),
            scale_factor_temporal=vae.temporal_stride,
            scale_factor_spatial=vae.spatial_stride,
            is_residual=vae.residual,
            in_channels=COLORS * vae.patch**2,
            out_channels=COLORS * vae.patch**2,
            patch_size=vae.patch if vae.patch > 1 else None,
        )
    return models


def scheduler(model: Model) -> Any:
    """The scheduler that the checkpoint names."""
    return _diffusers().UniPCMultistepScheduler(
        num_train_timesteps=TRAIN_TIMESTEPS,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=model.sampling.flow_shift,
    )


def model_index(model: Model) -> dict[str, Any]:
    """model_index.json with the keys of Wan-AI's checkpoints in diffusers layout."""
    experts: dict[str, str | None] = {
        EXPERT_COMPONENTS[expert]: "WanTransformer3DModel" for expert in model.experts
    }
    if len(experts) == 1:
        experts["transformer_2"] = None
    pipeline = "WanImageToVideoPipeline" if model.task == "i2v" else "WanPipeline"
    expands = {"expand_timesteps": True} if model.task == "ti2v" else {}
    images = {"image_encoder": [None, None], "image_processor": [None, None]}
    return {
        "_class_name": pipeline,
        "_diffusers_version": _diffusers().__version__,
        "boundary_ratio": model.sampling.boundary,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", TOKENIZER_CLASS],
        **{k: ["diffusers", name] if name else [None, None] for k, name in experts.items()},
        "vae": ["diffusers", "AutoencoderKLWan"],
        **expands,
        **(images if model.task == "i2v" else {}),
    }


def _diffusers() -> Any:
    """diffusers, imported late and as Any: its constructors have no types."""
    import diffusers

    return diffusers


def _write_config(directory: Path, model: Any) -> None:
    if hasattr(model, "save_config"):  # diffusers
        model.save_config(directory)
    else:  # transformers
        model.config.save_pretrained(directory)


def _write_weights(directory: Path, network: Any, *, seed: int, shards: int, heads: int) -> int:
    """Draws a network's tensors into ``shards`` files, named as published ones; returns bytes."""
    from safetensors.numpy import save

    stem = "diffusion_pytorch_model" if hasattr(network, "save_config") else "model"
    # parameters, not the state dict: of UMT5's tied tables published files carry shared.weight
    shapes = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    names = list(shapes)
    if not 1 <= shards <= len(names):
        raise RequestError(
            f"shards is {shards}; {directory.name} has {len(names)} tensors: 1 to {len(names)} work"
        )
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for shard in range(shards):
        suffix = "" if shards == 1 else f"-{shard + 1:05d}-of-{shards:05d}"
        file = f"{stem}{suffix}.safetensors"
        chunk = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        tensors = {
            name: draw(f"{directory.name}/{name}", shapes[name], seed=seed, heads=heads)
            for name in chunk
        }
        (directory / file).write_bytes(save(tensors, metadata={"format": "pt"}))
        weight_map.update(dict.fromkeys(chunk, file))
        total_bytes += sum(tensor.nbytes for tensor in tensors.values())
    if shards > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        _write_json(directory / f"{stem}.safetensors.index.json", index)
    return total_bytes


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
