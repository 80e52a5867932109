"""What tests share that compile and run: bundles of the tiny checkpoint, and diffusers' results."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from wanc.bundle.store import open_bundle
from wanc.cache.store import Cache
from wanc.compile import compile_bundle
from wanc.plan.plan import Plan, make_plan
from wanc.progress import Progress, Silent
from wanc.run import pipeline
from wanc.run.batch import Item, run_to_file
from wanc.run.condition import Condition
from wanc.run.feeds import vae_latents
from wanc.run.job import Job, Loaded, images_of
from wanc.run.load import load
from wanc.run.observe import Observe, ignore
from wanc.run.outputs import Files
from wanc.run.pipeline import Generation
from wanc.run.prompt import Tokenizer
from wanc.run.record import Stopwatch
from wanc.run.request import Guidance, LoadRequest, RunRequest, sampling_values
from wanc.run.session import Session
from wanc.run.start import Processes
from wanc.run.text import encode_prompts
from wanc.run.video import format_of
from wanc.spec.model import Model
from wanc.spec.presets import NEGATIVE_PROMPT, TINY
from wanc.spec.shape import Shape
from wanc.spec.target import Precision
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant
from wanc.targets.cpu import CpuTarget

torch.set_num_threads(1)  # test processes share few cores, and OpenMP's threads spin as they wait

Images = tuple[Path, ...]
"""A first image, and maybe a last one."""

PROMPT = "a lighthouse above a stormy sea"
STEPS = 4
"""At shift 12 three steps are the high-noise expert's and one is the other's."""
SEED = 1


def tiny_plan(
    shape: str,
    topology: str,
    precision: Precision = "fp32",
    options: Options | None = None,
    model: Model = TINY,
    placement: str = "linear",
) -> Plan:
    """A plan of the tiny model."""
    variant = Variant(
        task=model.task,
        shape=Shape.parse(shape),
        topology=Topology.parse(topology),
        placement=placement,
        precision=precision,
        target="cpu",
    )
    return make_plan(model, variant, options or Options())


def without_vae(plan: Plan) -> Plan:
    """A plan up to the latents; the VAE's programs take longest to compile."""
    stages = tuple(s for s in plan.schedule.stages if not s.name.startswith("vae"))
    return replace(
        plan,
        programs=tuple(program for program in plan.programs if program.ranks == "all"),
        schedule=replace(plan.schedule, stages=stages),
    )


@dataclass(frozen=True)
class Wanc:
    """Compiles and runs the tiny checkpoint."""

    checkpoint: Path
    cache: Cache
    folder: Path
    model: Model = TINY

    def compile(self, plans: list[Plan], bundle: Path) -> str | None:
        """The digest of the bundle that was written."""
        return compile_bundle(
            plans,
            CpuTarget(),
            bundle,
            cache=self.cache,
            jobs=1,
            progress=Silent(),
        ).digest

    def bundle(self, shape: str, topology: str, precision: Precision = "fp32", **how: Any) -> Path:
        """A bundle of one variant, compiled where it is not there yet."""
        options = Options(**how)
        name = "-".join([shape, topology, precision, *map(str, how.values())])
        path = self.folder / name
        if not path.exists():
            self.compile([tiny_plan(shape, topology, precision, options, self.model)], path)
        return path

    def denoiser(self, shape: str, topology: str, **how: Any) -> Path:
        """A bundle of one variant without its VAE: enough for ``latents``."""
        named = [str(getattr(value, "name", value)) for value in how.values()]
        path = self.folder / "-".join(["denoiser", shape, topology, *named])
        if not path.exists():
            how = {"model": self.model, **how}
            self.compile([without_vae(tiny_plan(shape, topology, **how))], path)
        return path

    def session(self, bundle: Path) -> Session:
        """A session on the bundle's first variant."""
        opened = open_bundle(bundle)
        session = load(opened, opened.variants[0].config, self.checkpoint)
        pipeline.prepare(session, Silent())
        return session

    def request(self, **changed: Any) -> RunRequest:
        """The request that parity tests make."""
        values: dict[str, Any] = {
            "prompt": PROMPT,
            "negative": NEGATIVE_PROMPT,
            "steps": STEPS,
            "seed": SEED,
            "guidance": Guidance(high=4.0, low=3.0),
        }
        return RunRequest(**{**values, **changed})

    def sample(self, session: Session, **changed: Any) -> "Made":
        """Generate with a session."""
        loaded = Loaded(
            bundle=None,
            session=session,
            tokenizer=Tokenizer(self.checkpoint),
            vae_ranks=None,
            seconds=0.0,
        )
        seen: dict[str, list[Any]] = {"text": [], "condition": [], "latents": [], "pixels": []}
        job = self.job(session, lambda stage, _, array: seen[stage].append(array), **changed)
        made = pipeline.sample(loaded, job)
        return Made(
            latents=made.latents,
            pixels=made.pixels,
            prompt_embeddings=seen["text"][0],
            condition=seen["condition"][0] if seen["condition"] else None,
            steps=tuple(map(torch.from_numpy, seen["latents"])),
        )

    def job(self, session: Session, observe: Observe = ignore, **changed: Any) -> Job:
        """A generation with a session."""
        request = self.request(**changed)
        return Job(
            request=request,
            values=sampling_values(request, session.config),
            files=Files(),
            clock=Stopwatch(),
            progress=Silent(),
            images=images_of(request, session),
            observe=observe,
        )

    def generate(
        self,
        bundle: Path,
        output: Path,
        *,
        weights: Path | None = None,
        latents: Path | None = None,
        progress: Progress | None = None,
        processes: int | None = None,
        **changed: Any,
    ) -> dict[str, Any]:
        """Run a bundle's only variant to an mp4; returns the record."""
        record = run_to_file(
            LoadRequest(bundle=bundle, weights=weights or self.checkpoint),
            Processes(count=processes),
            progress or Silent(),
            Item(
                name=str(output),
                request=self.request(**changed),
                output=output,
                form=format_of(output, None),
                latents=latents,
            ),
        )
        assert record is not None
        return record

    def generation(self, *bundle: Any, images: Images = (), **how: Any) -> "Made":
        """Compile where needed, and generate, from a first and maybe a last image."""
        session = self.session(self.bundle(*bundle, **how))
        try:
            return self.sample(session, **named_images(images))
        finally:
            session.engine.close()

    @torch.no_grad()
    def latents(self, bundle: Path, **changed: Any) -> Tensor:
        """Load, encode the prompts and denoise: a generation without its decode."""
        session, state = self.session(bundle), {}
        try:
            self._encode(session, state, **changed)
            return pipeline.denoise(session, self.job(session, **changed), Condition(), state)
        finally:
            session.engine.close()

    @torch.no_grad()
    def embeddings(self, bundle: Path, **changed: Any) -> Any:
        """Load and encode the prompts: [branches, T, D] fp32."""
        session = self.session(bundle)
        try:
            return self._encode(session, {}, **changed)
        finally:
            session.engine.close()

    def _encode(self, session: Session, state: dict[str, Any], **changed: Any) -> Any:
        request, tokenizer = self.request(**changed), Tokenizer(self.checkpoint)
        prompts = [tokenizer(request.prompt), tokenizer(request.negative_prompt(session.config))]
        values = sampling_values(request, session.config)
        return encode_prompts(session, prompts, values, state)


@dataclass(frozen=True, kw_only=True)
class Made(Generation):
    """What was made of a request, and what led to it."""

    prompt_embeddings: Any
    """[branches, T, D] fp32."""
    condition: Any
    """[1, C, F, H, W] fp32, of what images there were."""
    steps: tuple[Tensor, ...]
    """The latents after each step."""


@dataclass(frozen=True)
class Diffusers:
    """diffusers' pipeline on a checkpoint: ``diffusers(shape, dtype)`` makes the same request."""

    checkpoint: Path
    model: Model = TINY
    made: dict[Any, Made] = field(default_factory=dict)

    def pipeline(self, dtype: torch.dtype = torch.float32, *, from_images: bool = False) -> Any:
        """WanPipeline, or that for images, whose VAE is in fp32 whatever the dtype."""
        import diffusers

        name = "WanImageToVideoPipeline" if from_images else "WanPipeline"
        dtypes = {"default": dtype, "vae": torch.float32} if from_images else dtype
        pipe = getattr(diffusers, name).from_pretrained(self.checkpoint, dtype=dtypes)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def __call__(
        self, shape: str, dtype: torch.dtype = torch.float32, *, images: Images = ()
    ) -> Made:
        key = (shape, dtype, images)
        if key not in self.made:
            self.made[key] = self._generate(Shape.parse(shape), dtype, images)
        return self.made[key]

    @torch.no_grad()
    def _generate(self, size: Shape, dtype: torch.dtype, images: Images) -> Made:
        pipe = self.pipeline(dtype, from_images=bool(images))
        steps: list[Tensor] = []
        conditions: list[Any] = []

        def keep(pipe: Any, step: int, timestep: Tensor, values: dict[str, Tensor]) -> Any:
            steps.append(values["latents"].float())
            return values

        if images:
            prepare = pipe.prepare_latents

            def prepare_latents(*args: Any, **how: Any) -> Any:
                prepared = prepare(*args, **how)
                conditions.append(prepared[1][:, -self.model.vae.z_channels :].float().numpy())
                return prepared

            pipe.prepare_latents = prepare_latents
        opened = {n: Image.open(path).convert("RGB") for n, path in named_images(images).items()}
        text = pipe.encode_prompt(PROMPT, NEGATIVE_PROMPT, max_sequence_length=512)
        latents = pipe(
            **opened,
            prompt=PROMPT,
            negative_prompt=NEGATIVE_PROMPT,
            height=size.height_px,
            width=size.width_px,
            num_frames=size.frames,
            num_inference_steps=STEPS,
            guidance_scale=4.0,
            guidance_scale_2=3.0 if pipe.transformer_2 else None,
            generator=torch.Generator("cpu").manual_seed(SEED),
            output_type="latent",
            callback_on_step_end=keep,
        ).frames.float()
        z = vae_latents(latents, self.model.vae).to(pipe.vae.dtype)
        return Made(
            prompt_embeddings=np.concatenate([e.float().numpy() for e in text]),
            condition=conditions[0] if conditions else None,
            latents=latents,
            pixels=pipe.vae.decode(z, return_dict=False)[0].float().numpy(),
            steps=tuple(steps),
        )


def named_images(images: Images) -> dict[str, Path]:
    """Images as a request and diffusers name them."""
    return dict(zip(("image", "last_image"), images, strict=False))
