"""diffusers as the reference, bundles judged by it, and the check on static softmax bounds."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.compiled import PROMPT, SEED, STEPS, Made
from wanc.compare import softmax_bound
from wanc.compare.reference import (
    ReferenceRequest,
    load_pipeline,
    run_pipeline,
    run_reference,
)
from wanc.compare.report import Subject, ThreeWay, three_way, versions
from wanc.compare.softmax_bound import UNDERFLOW, bound_excess, observe_softmax_bounds
from wanc.compare.trace import Recording
from wanc.errors import RequestError, RunError, WeightsError
from wanc.plan.geometry import geometry
from wanc.plan.tiles import plan_tiles
from wanc.run.request import SamplingValues
from wanc.run.sampler import draw_noise, make_scheduler
from wanc.spec.model import Model, Task
from wanc.spec.presets import NEGATIVE_PROMPT, TINY, TINY_MODELS
from wanc.spec.shape import Shape

SMALL = "64x32x5"
COARSE = "64x64x5"
"""Of the 5B model, whose grain is 32 px."""
WIDE = "272x32x5"
"""34 latent columns, where a tile has 32."""

ROUNDING = 1e-6
"""Of the same sums in another order, over one operation."""

VALUES = SamplingValues(
    steps=STEPS,
    flow_shift=TINY.sampling.flow_shift,
    boundary=TINY.sampling.boundary,
    guidance_high=4.0,
    guidance_low=3.0,
    seed=SEED,
    fps=16,
)


def asked(shape: str = SMALL, model: Model = TINY, **changed: Any) -> ReferenceRequest:
    """The request that tests of parity make, with the model's own shift and boundary."""
    sampling = model.sampling
    values = replace(VALUES, flow_shift=sampling.flow_shift, boundary=sampling.boundary)
    request = ReferenceRequest(
        task=model.task,
        values=values,
        prompt=PROMPT,
        negative_prompt=NEGATIVE_PROMPT,
        shape=Shape.parse(shape),
    )
    return replace(request, **changed)


def run(weights: Path, request: ReferenceRequest, dtype: Any = "fp32") -> dict[Any, Any]:
    made = Recording()
    run_reference(weights, request, dtype=dtype, observe=made.observe)
    return made.values


def opened(paths: tuple[Path, ...], *, as_pixels: bool = False) -> dict[str, Any]:
    """Images as diffusers is given them, or as wanc has them."""
    pictures: list[Any] = [Image.open(path).convert("RGB") for path in paths]
    if as_pixels:
        pictures = [
            (2 * (np.asarray(picture, np.float32) / 255) - 1).transpose(2, 0, 1)
            for picture in pictures
        ]
    return dict(zip(("image", "last_image"), pictures, strict=False))


# --- the reference --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "shape", "count"),
    [
        ("t2v", SMALL, 0),
        ("i2v", SMALL, 1),
        ("i2v", SMALL, 2),
        ("ti2v", COARSE, 0),
        ("ti2v", COARSE, 1),
    ],
)
@pytest.mark.parametrize("as_pixels", [False, True])
def test_the_reference_shows_what_the_pipeline_computes(
    of_task: Any, pictures: Any, task: Task, shape: str, count: int, as_pixels: bool
) -> None:
    """Against a plain call of the pipeline, with the checkpoint's own scheduler."""
    _, diffusers = of_task(task)
    images = pictures(shape)[:count]
    seen = run(
        diffusers.checkpoint,
        asked(shape, diffusers.model, **opened(images, as_pixels=as_pixels)),
    )
    made = diffusers(shape, images=images)
    steps = [("latents", step) for step in range(1, STEPS + 1)]
    condition = [("condition", 0)] if count else []
    assert {*seen} == {("text", 0), *condition, *steps, ("pixels", 0)}
    assert np.array_equal(seen["text", 0], made.prompt_embeddings)
    for at, latents in zip(steps, made.steps, strict=True):
        assert np.array_equal(seen[at], latents.numpy())
    assert np.abs(seen["pixels", 0] - made.pixels).max() < ROUNDING
    if count:
        assert np.array_equal(seen["condition", 0], made.condition)


def test_bf16_is_diffusers_own_but_for_the_vae(
    tiny_checkpoint: Path, diffusers_result: Any
) -> None:
    made = diffusers_result(SMALL, torch.bfloat16)
    exact, seen = (run(tiny_checkpoint, asked(), dtype) for dtype in ("fp32", "bf16"))
    assert np.array_equal(seen["latents", STEPS], made.latents.numpy())
    assert not np.array_equal(seen["latents", STEPS], exact["latents", STEPS])
    pipe = load_pipeline(tiny_checkpoint, asked(), dtype="bf16")
    assert {weight.dtype for weight in pipe.vae.parameters()} == {torch.float32}
    assert pipe.transformer.blocks[0].attn1.to_q.weight.dtype == torch.bfloat16


def test_noise_that_is_given_is_used(tiny_checkpoint: Path) -> None:
    size = (1, 16, 2, 4, 8)
    drawn = run(tiny_checkpoint, asked())
    given = run(
        tiny_checkpoint,
        asked(noise=draw_noise(SEED, size), values=replace(VALUES, seed=SEED + 1)),
    )
    other = run(tiny_checkpoint, asked(noise=draw_noise(SEED + 1, size)))
    assert np.array_equal(given["latents", STEPS], drawn["latents", STEPS])
    assert not np.array_equal(other["latents", STEPS], drawn["latents", STEPS])


@pytest.mark.parametrize("sampler", ["unipc", "euler", "dpm++"])
def test_the_pipeline_keeps_the_sampler_and_its_sigmas(tiny_checkpoint: Path, sampler: Any) -> None:
    values = replace(VALUES, sampler=sampler)
    pipe, made = load_pipeline(tiny_checkpoint, asked(), dtype="fp32"), Recording()
    run_pipeline(pipe, asked(values=values), made.observe)
    expected = make_scheduler(values)
    assert type(pipe.scheduler) is type(expected)
    assert torch.equal(pipe.scheduler.sigmas, expected.sigmas)
    assert pipe.scheduler.step_index == STEPS
    latents = made.values["latents", STEPS]
    unipc = run(tiny_checkpoint, asked())["latents", STEPS]
    assert np.array_equal(latents, unipc) is (sampler == "unipc")


def test_a_pipeline_runs_again(tiny_checkpoint: Path) -> None:
    """What is put in its way to look on goes again."""
    pipe, first, second = load_pipeline(tiny_checkpoint, asked(), dtype="fp32"), [], []
    run_pipeline(pipe, asked(), lambda stage, step, _: first.append((stage, step)))
    run_pipeline(pipe, asked(), lambda stage, step, _: second.append((stage, step)))
    assert first == second
    assert len(first) == STEPS + 2


@pytest.mark.parametrize(
    ("changed", "calls", "branches"),
    [
        ({}, {"transformer": 6, "transformer_2": 2}, 2),
        ({"only": "high_noise"}, {"transformer": 8}, 2),
        ({"only": "low_noise"}, {"transformer_2": 8}, 2),
        ({"only": "low_noise", "guidance_low": 1.0}, {"transformer_2": 4}, 1),
        ({"only": "low_noise", "guidance_high": 1.0}, {"transformer_2": 8}, 2),
        ({"guidance_high": 1.0, "guidance_low": 0.5}, {"transformer": 3, "transformer_2": 1}, 1),
        ({"boundary": 0.99}, {"transformer": 2, "transformer_2": 6}, 2),
    ],
)
def test_experts_and_guidance_are_the_values(
    tiny_checkpoint: Path, changed: Any, calls: dict[str, int], branches: int
) -> None:
    pipe, made = load_pipeline(tiny_checkpoint, asked(), dtype="fp32"), Recording()
    seen: dict[str, int] = {}
    for name in ("transformer", "transformer_2"):

        def count(*_: Any, name: str = name) -> None:
            seen[name] = seen.get(name, 0) + 1

        getattr(pipe, name).register_forward_hook(count)
    run_pipeline(pipe, asked(values=replace(VALUES, **changed)), made.observe)
    assert seen == calls
    assert made.values["text", 0].shape == (branches, 512, TINY.text_encoder.width)


@pytest.mark.parametrize(("high", "low"), [(1.0, 3.0), (4.0, 0.5), (0.0, 1.5)])
def test_guidance_that_diffusers_cannot_express_is_refused(
    tiny_checkpoint: Path, high: float, low: float
) -> None:
    values = replace(VALUES, guidance_high=high, guidance_low=low)
    with pytest.raises(RequestError, match=f"high={high:g}, low={low:g}: diffusers guides both"):
        run(tiny_checkpoint, asked(values=values))


@pytest.mark.parametrize(
    ("task", "images", "told"),
    [
        ("i2v", {}, "i2v: needs the image"),
        ("t2v", {"image": np.zeros((3, 32, 64))}, "t2v: takes no image"),
        ("ti2v", dict.fromkeys(("image", "last_image"), np.zeros((3, 32, 64))), "ti2v: takes no l"),
        ("i2v", {"last_image": np.zeros((3, 32, 64))}, "i2v: needs the image"),
    ],
)
def test_images_that_do_not_go_with_the_task_are_refused(
    tmp_path: Path, task: Task, images: Any, told: str
) -> None:
    with pytest.raises(RequestError, match=told):
        run(tmp_path, asked(model=TINY_MODELS[task], **images))


def test_a_checkpoint_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="diffusers' WanPipeline cannot load it"):
        run(tmp_path, asked())


# --- tiles ----------------------------------------------------------------------------------------


def tiled(kind: Any, shape: str = WIDE, model: Model = TINY) -> Any:
    grid = geometry(Shape.parse(shape), model)
    plan = plan_tiles(grid, kind, 1, px_per_latent=model.vae.spatial_stride)
    assert len(plan.tiles) == 2
    return plan


@pytest.fixture(scope="module")
def wide(of_task: Any, pictures: Any) -> tuple[Any, ReferenceRequest, Any]:
    """A pipeline, a request of two tiles, and what it makes of it without tiles."""
    _, diffusers = of_task("i2v")
    request = asked(WIDE, diffusers.model, **opened(pictures(WIDE)[:1]))
    pipe, made = load_pipeline(diffusers.checkpoint, request, dtype="fp32"), Recording()
    run_pipeline(pipe, request, made.observe)
    return pipe, request, made.values


def test_diffusers_tiles_are_those_of_its_own_tiling(wide: Any) -> None:
    pipe, request, whole = wide
    tiles, own = Recording(), Recording()
    run_pipeline(pipe, replace(request, tiles=tiled("diffusers")), tiles.observe)
    pipe.vae.enable_tiling()
    run_pipeline(pipe, request, own.observe)
    pipe.vae.disable_tiling()
    for at in (("condition", 0), ("pixels", 0)):
        assert np.abs(tiles.values[at] - own.values[at]).max() < ROUNDING
        assert np.abs(tiles.values[at] - whole[at]).max() > 1e-3


@torch.no_grad()
def test_even_tiles_are_decoded_apart(wide: Any) -> None:
    """Two latent columns, which are 16 px, lie in the first tile alone, and the last two in the
    second."""
    pipe, request, whole = wide
    made = Recording()
    run_pipeline(pipe, replace(request, tiles=tiled("even")), made.observe)
    pixels = made.values["pixels", 0]
    assert np.abs(pixels - whole["pixels", 0]).max() > 0.01
    config = pipe.vae.config
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (config.latents_mean, config.latents_std)
    )
    z = torch.from_numpy(made.values["latents", STEPS]) * std + mean
    left = pipe.vae.decode(z[..., :32]).sample.numpy()
    right = pipe.vae.decode(z[..., 2:]).sample.numpy()
    assert np.abs(pixels[..., :16] - left[..., :16]).max() < 1e-5
    assert np.abs(pixels[..., -16:] - right[..., -16:]).max() < 1e-5


def test_images_are_encoded_in_even_tiles_too(wide: Any) -> None:
    """The first two latent columns are those of a video as wide as the first tile."""
    pipe, request, whole = wide
    tiles, first = Recording(), Recording()
    run_pipeline(pipe, replace(request, tiles=tiled("even")), tiles.observe)
    left = request.image.crop((0, 0, 256, 32))
    run_pipeline(pipe, replace(request, shape=Shape.parse("256x32x5"), image=left), first.observe)
    at = ("condition", 0)
    assert np.abs(tiles.values[at][..., :2] - first.values[at][..., :2]).max() < 1e-5
    assert np.abs(tiles.values[at] - whole[at]).max() > 1e-3


# --- bundles --------------------------------------------------------------------------------------


def recorded(made: Made) -> Recording:
    """What a bundle's run showed, as a recording."""
    recording = Recording()
    recording.observe("text", 0, made.prompt_embeddings)
    if made.condition is not None:
        recording.observe("condition", 0, made.condition)
    for step, latents in enumerate(made.steps, start=1):
        recording.observe("latents", step, latents.numpy())
    recording.observe("pixels", 0, made.pixels)
    return recording


def judged(bundle: Recording, weights: Path, request: ReferenceRequest, precision: str) -> ThreeWay:
    runs = []
    for dtype in ("fp32", "bf16"):
        runs.append(Recording())
        run_reference(weights, request, dtype=dtype, observe=runs[-1].observe)  # type: ignore[arg-type]
    subject = Subject(
        bundle="",
        variant={"precision": precision},
        model="tiny",
        sampling={},
        experts=(),
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        seed=SEED,
        images=(),
        versions=versions(),
        covers=(),
    )
    return three_way(runs[0], runs[1], bundle, subject)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("count", [1, 0])
def test_a_bundle_passes_by_a_wide_margin_and_one_that_is_wrong_does_not(
    of_task: Any, pictures: Any, precision: str, count: int
) -> None:
    """The wrong one begins with other noise."""
    wanc, _ = of_task("i2v" if count else "t2v")
    shape = "208x128x5"
    images = pictures(shape)[:count]
    request = asked(shape, wanc.model, **opened(images))
    made = recorded(wanc.generation(shape, "tp1", precision, images=images))
    found = judged(made, wanc.checkpoint, request, precision)
    assert found.passes, found.failures
    worst = max(criterion.seen / criterion.limit for criterion in found.criteria)
    assert worst < (0.9 if precision == "bf16" else 0.1)
    if precision == "fp32" and not count:
        other = replace(request, values=replace(request.values, seed=SEED + 1))
        wrong = judged(made, wanc.checkpoint, other, precision)
        assert [failure.split(":")[0] for failure in wrong.failures] == [
            f"latents after step {STEPS}",
            "pixels",
        ]


# --- static softmax bounds ------------------------------------------------------------------------


def brute_excess(q_BNLK: Tensor, k_BNLK: Tensor, scale: float) -> Tensor:
    scores = scale * torch.einsum("bnik,bnjk->bnij", q_BNLK.double(), k_BNLK.double())
    longest = k_BNLK.double().norm(dim=-1).amax(-1, keepdim=True)
    return scale * q_BNLK.double().norm(dim=-1) * longest - scores.amax(-1)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("tile", [1, 7, 40, 1000])
def test_excess_is_that_of_all_scores_at_once(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    """One key is long, and hardly any query points its way."""
    q, k = 6 * drawn(2, 3, 40, 24), 6 * drawn(2, 3, 50, 24, seed=1)
    k[1, 2, 17] *= 12
    monkeypatch.setattr(softmax_bound, "_SCORES_BYTES", tile * 4 * 50)
    found, expected = bound_excess(q, k, 24**-0.5), brute_excess(q, k, 24**-0.5)
    assert found.shape == (2, 3, 40)
    assert (found - expected).abs().max() < 1e-3
    assert (expected[1, 2] > UNDERFLOW).sum() > 20
    assert torch.equal(found > UNDERFLOW, expected > UNDERFLOW)


def test_excess_of_bf16_is_computed_in_fp32() -> None:
    q, k = (drawn(1, 2, 30, 24, seed=seed).bfloat16() for seed in (0, 1))
    assert (bound_excess(q, k, 0.2) - brute_excess(q, k, 0.2)).abs().max() < 1e-5


def test_rows_that_a_static_bound_zeroes_are_all_lost_rows() -> None:
    """Summed in fp32, as such a kernel does; and a row that is no lost one sums to more."""
    q, k = 1.4 * drawn(1, 1, 200, 24), 4 * drawn(1, 1, 60, 24, seed=1)
    k[0, 0, 5] *= 4
    scale = 24**-0.5
    scores, bound = scale * q @ k.mT, scale * q.norm(dim=-1) * k.norm(dim=-1).amax()
    sums = torch.exp(scores - bound[..., None]).sum(-1)
    lost = bound_excess(q, k, scale) > UNDERFLOW
    assert 20 < int((sums == 0).sum()) < 180
    assert lost[sums == 0].all()
    assert (sums[~lost] > torch.finfo(torch.float32).tiny).all()


def test_bounds_of_a_run_are_by_step_and_change_nothing(tiny_checkpoint: Path) -> None:
    pipe, made = load_pipeline(tiny_checkpoint, asked(), dtype="fp32"), Recording()
    processors = [block.attn1.processor for block in pipe.transformer.blocks]
    with observe_softmax_bounds(pipe) as found:
        run_pipeline(pipe, asked(), made.observe)
    assert [(bound.step, bound.expert) for bound in found.steps] == [
        (1, "high_noise"),
        (2, "high_noise"),
        (3, "high_noise"),
        (4, "low_noise"),
    ]
    of_step = 2 * TINY.transformer.layers * TINY.transformer.heads * 16  # branches, ..., tokens
    assert {bound.rows for bound in found.steps} == {of_step}
    assert [block.attn1.processor for block in pipe.transformer.blocks] == processors
    alone = run(tiny_checkpoint, asked())
    assert np.array_equal(made.values["latents", STEPS], alone["latents", STEPS])


def test_bounds_are_of_q_and_k_after_norms_and_rope(tiny_checkpoint: Path) -> None:
    """Both worked out anew from what goes into each attention; RoPE as a product of complexes."""
    pipe, worst = load_pipeline(tiny_checkpoint, asked(), dtype="fp32"), []

    def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        turn = torch.complex(cos[..., 0::2].double(), sin[..., 0::2].double())
        return torch.view_as_real(pairs * turn).flatten(-2)

    def expect(attention: Any, args: Any, how: Any) -> None:
        hidden, rope = args[0], args[3]
        q, k = (
            turned(norm(project(hidden)).unflatten(2, (attention.heads, -1)), *rope).transpose(1, 2)
            for norm, project in (
                (attention.norm_q, attention.to_q),
                (attention.norm_k, attention.to_k),
            )
        )
        worst.append(float(brute_excess(q, k, q.shape[-1] ** -0.5).max()))

    for block in pipe.transformer.blocks:
        block.attn1.register_forward_pre_hook(expect, with_kwargs=True)
    with observe_softmax_bounds(pipe) as found:
        run_pipeline(pipe, asked(values=replace(VALUES, steps=1)), lambda *_: None)
    layers, (bound,) = TINY.transformer.layers, found.steps
    assert len(worst) == 2 * layers
    assert bound.largest_excess == pytest.approx(max(worst), rel=1e-4)
    assert bound.layer == worst.index(max(worst)) % layers


def test_lost_rows_are_counted_where_they_are(tiny_checkpoint: Path) -> None:
    """Wider q and k of the low-noise expert's first layer push its rows over the edge."""
    pipe = load_pipeline(tiny_checkpoint, asked(), dtype="fp32")
    pipe.transformer_2.blocks[0].attn1.norm_q.weight.data *= 10
    with observe_softmax_bounds(pipe) as found:
        run_pipeline(pipe, asked(), lambda *_: None)
    lost = [bound.lost_rows for bound in found.steps]
    assert lost[:3] == [0, 0, 0]
    assert 0 < lost[3] <= found.steps[3].rows // 2
    assert found.steps[3].layer == 0
    assert found.steps[3].largest_excess > UNDERFLOW


def test_attention_that_goes_another_way_is_not_passed_over(tiny_checkpoint: Path) -> None:
    pipe = load_pipeline(tiny_checkpoint, asked(), dtype="fp32")
    processors = [block.attn1.processor for block in pipe.transformer.blocks]
    pipe.transformer.blocks[0].attn1.processor = lambda attention, hidden, *_: hidden
    with (
        pytest.raises(RunError, match="did not go through torch's scaled_dot_product_attention"),
        observe_softmax_bounds(pipe),
    ):
        run_pipeline(pipe, asked(), lambda *_: None)
    assert pipe.transformer.blocks[1].attn1.processor is processors[1]
