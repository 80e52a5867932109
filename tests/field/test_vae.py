"""Cases from the field about the VAE's decoder: tiles, and latent frames one at a time.

Each test names the public report that it retells.
"""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cpu.test_parity import MASKED, PIXEL_TOLERANCE, difference
from wanc.bundle.store import open_bundle
from wanc.errors import RefusedError, WeightsError
from wanc.progress import Silent
from wanc.run.feeds import vae_latents
from wanc.run.load import open_checkpoint
from wanc.run.sampler import draw_noise
from wanc.run.session import Session
from wanc.run.tiles import clamp
from wanc.run.vae import decode
from wanc.spec.checkpoint import read_checkpoint
from wanc.spec.presets import TINY
from wanc.tiny import write_tiny_checkpoint

in_tiles = pytest.mark.xdist_group("field-tiles")
"""On one worker, for what they compile takes long; the other tests share other programs."""

TILED = "320x320x5"
"""Four tiles on either grid. Programs decode one latent frame: any count of them may be fed."""

TILED_PSNR_DB = 43.0
"""Even grid against the picture decoded whole: 45.1 is seen, 44.0 in the worst frame. Tiles lack
their surroundings, which costs diffusers' own grid more, 41.7. Tiles that are not blended, or one
that is a pixel off, have 28."""


def latents_of(shape: str, frames: int) -> torch.Tensor:
    """Noise as the latents of a shape's picture, for so many latent frames."""
    columns, rows, _ = (int(side) for side in shape.split("x"))
    return draw_noise(3, (1, 16, frames, rows // 8, columns // 8))


@pytest.fixture(scope="module")
def vae(diffusers_result: Any) -> Any:
    return diffusers_result.pipeline().vae


@torch.no_grad()
def diffusers_decode(vae: Any, latents: torch.Tensor, *, tiled: bool) -> np.ndarray[Any, Any]:
    vae.enable_tiling() if tiled else vae.disable_tiling()
    pixels: np.ndarray[Any, Any] = vae.decode(vae_latents(latents, TINY.vae)).sample.numpy()
    return pixels


@pytest.mark.xdist_group("field-run")
@pytest.mark.parametrize("frames", [1, 2, 4, 5])
def test_latent_frames_one_at_a_time_are_the_one_shot_decode(wanc, vae, frames):
    """tenstorrent/tt-metal #49418: chunked temporal decode differs from the whole one."""
    latents = latents_of(MASKED, frames)
    session = wanc.session(wanc.bundle(MASKED, "tp1"))
    ours, theirs = (
        clamp(decode(session, latents, Silent())),
        diffusers_decode(vae, latents, tiled=False),
    )
    assert ours.shape == theirs.shape == (1, 3, 4 * frames - 3, 48, 80)
    assert difference(ours, theirs) < PIXEL_TOLERANCE


@in_tiles
def test_tiles_cost_little(wanc, vae):
    """huggingface/diffusers #12529: tiled decode is broken in its first chunk. Nine frames."""
    latents = latents_of(TILED, frames=3)
    tiled = clamp(decode(wanc.session(wanc.bundle(TILED, "tp1")), latents, Silent()))
    whole = diffusers_decode(vae, latents, tiled=False)
    assert whole.shape[2] == 9
    for frame in range(9):  # a first frame that is wrong does not hide behind eight that are not
        assert psnr_db(tiled[:, :, frame], whole[:, :, frame]) > TILED_PSNR_DB


def psnr_db(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Of pixels in [-1, 1]."""
    return float(10 * np.log10(2**2 / np.square(a - b).mean()))


@in_tiles
def test_grid_of_diffusers_is_diffusers_own_tiled_decode(wanc, vae):
    """huggingface/diffusers #12529: what ``--vae-tiles diffusers`` promises."""
    latents = latents_of(TILED, frames=2)
    session = wanc.session(wanc.bundle(TILED, "tp1", vae_tiles="diffusers"))
    theirs = diffusers_decode(vae, latents, tiled=True)
    assert difference(clamp(decode(session, latents, Silent())), theirs) < PIXEL_TOLERANCE


@in_tiles
def test_tiles_planned_are_the_tiles_run(wanc, monkeypatch, capsys):
    """vllm-project/vllm-omni PR #4436: the tile count that is planned is not the one that runs."""
    from wanc.cli import main

    with pytest.raises(SystemExit):
        main(f"plan --json --model tiny --target cpu --shape {TILED}".split())
    (planned,) = json.loads(capsys.readouterr().out)["variants"]
    session = wanc.session(wanc.bundle(TILED, "tp1"))
    ran: Counter[str] = Counter()
    run = Session.run

    def counted(self: Session, stage: str, *args: Any, **kwargs: Any) -> None:
        ran[stage] += 1
        run(self, stage, *args, **kwargs)

    monkeypatch.setattr(Session, "run", counted)
    decode(session, latents_of(TILED, frames=2), Silent())
    count = len(planned["tiles"]["tiles"])
    assert count == len(session.config.tiles.tiles) == 4
    assert ran == {"vae_decode_first": count, "vae_decode_rest": count}


@in_tiles
def test_48_channel_vae_with_a_16_channel_transformer_is_refused_before_any_work(wanc, tmp_path):
    """calesthio/OpenMontage #284: found at decode, after all the sampling."""
    z48 = replace(TINY.vae, z_channels=48, latents_mean=(0.0,) * 48, latents_std=(1.0,) * 48)
    write_tiny_checkpoint(tmp_path / "z48", model=replace(TINY, vae=z48))
    with pytest.raises(RefusedError, match="out_channels 16 does not fit vae z_dim 48"):
        read_checkpoint(tmp_path / "z48")  # as compile does
    config = open_bundle(wanc.bundle(TILED, "tp1")).variants[0].config
    with pytest.raises(WeightsError, match=r"vae/post_quant_conv\.weight is 48x48x1x1x1; needs 16"):
        open_checkpoint(config, tmp_path / "z48")  # as run does
