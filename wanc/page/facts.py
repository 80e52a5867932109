"""What a config says of a variant at a glance: what was asked for, and what follows from it."""

from wanc.bundle.config import VariantConfig
from wanc.bundle.described import DONE, key_text
from wanc.units import count

Facts = tuple[tuple[str, str], ...]
"""(what, value)."""


def facts_of(config: VariantConfig) -> Facts:
    """Its key, how it is cut, and how it is sampled where a run says nothing."""
    return (*_key(config), *_cut(config), *_sampling(config))


def _key(config: VariantConfig) -> Facts:
    texts = config.variant.texts()
    return (("model", config.model.name), *texts.items(), ("stage", DONE[config.stage]))


def _cut(config: VariantConfig) -> Facts:
    grid, split, options = config.geometry, config.tokens, config.options
    tail = split.padded_chunk_tokens - split.chunk_tokens
    blocks = [
        key_text(record.program.definition.get("layers"))
        for record in config.programs
        if record.program.kind == "dit_blocks"
    ]
    return (
        ("ranks", str(len(config.mesh.coordinates))),
        ("latent", f"{grid.latent_frames} frames of {grid.latent_columns}x{grid.latent_rows}"),
        ("tokens", f"{split.tokens}, {split.shard_tokens} a rank"),
        ("padding", f"{count(tail, 'row')} at each chunk's tail" if tail else "none"),
        ("masked keys", "pads of the last chunks" if split.masked else "none"),
        ("attention", options.attention),
        ("blocks", f"{', '.join(blocks)} of {config.model.transformer.layers} in a program"),
        ("VAE tiles", f"{len(config.tiles.tiles)}, grid {options.vae_tiles}"),
    )


def _sampling(config: VariantConfig) -> Facts:
    sampling = config.model.sampling
    low, high = sampling.guidance_low, sampling.guidance_high
    return (
        ("steps", str(sampling.steps)),
        ("guidance", str(high) if low == high else f"high {high}, low {low}"),
        ("flow shift", str(sampling.flow_shift)),
        ("frame rate", f"{sampling.fps} frames a second"),
    )
