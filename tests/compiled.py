"""What tests share that compile and run: bundles of the tiny checkpoint, and diffusers' results."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wanc.bundle.store import open_bundle
from wanc.cache import Cache
from wanc.compile import compile_bundle
from wanc.plan.plan import Plan, make_plan
from wanc.progress import Progress, Silent
from wanc.run import pipeline
from wanc.run.feeds import vae_latents
from wanc.run.load import load
from wanc.run.outputs import Files
from wanc.run.pipeline import Generation, Job, Loaded
from wanc.run.prompt import Tokenizer
from wanc.run.record import Stopwatch
from wanc.run.request import Guidance, LoadRequest, RunRequest, sampling_values
from wanc.run.session import Session
from wanc.run.start import Processes, run_to_file
from wanc.spec.model import Model
from wanc.spec.presets import NEGATIVE_PROMPT, TINY
from wanc.spec.shape import Shape
from wanc.spec.target import Precision
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant
from wanc.targets.cpu import CpuTarget

torch.set_num_threads(1)  # test processes share few cores, and OpenMP's threads spin as they wait

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
        task="t2v",
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
            self.compile([tiny_plan(shape, topology, precision, options)], path)
        return path

    def denoiser(self, shape: str, topology: str, **how: Any) -> Path:
        """A bundle of one variant without its VAE: enough for ``latents``."""
        named = [str(getattr(value, "name", value)) for value in how.values()]
        path = self.folder / "-".join(["denoiser", shape, topology, *named])
        if not path.exists():
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

    def sample(self, session: Session, **changed: Any) -> Generation:
        """Generate with a session."""
        loaded = Loaded(
            bundle=None,
            session=session,
            tokenizer=Tokenizer(self.checkpoint),
            vae_ranks=None,
            seconds=0.0,
        )
        return pipeline.sample(loaded, self.job(session, **changed))

    def job(self, session: Session, **changed: Any) -> Job:
        """A generation with a session."""
        request = self.request(**changed)
        return Job(
            request=request,
            values=sampling_values(request, session.config),
            files=Files(),
            clock=Stopwatch(),
            progress=Silent(),
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
            self.request(**changed),
            Processes(count=processes),
            progress or Silent(),
            output=output,
            latents=latents,
        )
        assert record is not None
        return record

    def generation(self, *bundle: Any, **how: Any) -> Generation:
        """Compile where needed, and generate."""
        session = self.session(self.bundle(*bundle, **how))
        try:
            return self.sample(session)
        finally:
            session.engine.close()

    @torch.no_grad()
    def latents(self, bundle: Path, **changed: Any) -> Tensor:
        """Load, encode the prompts and denoise: a generation without its decode."""
        session, state = self.session(bundle), {}
        try:
            self._encode(session, state, **changed)
            return pipeline.denoise(session, self.job(session, **changed), state)
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
        return pipeline.encode_prompts(session, prompts, values, state)


@dataclass(frozen=True, kw_only=True)
class Reference(Generation):
    """What diffusers made of a request."""

    steps: tuple[Tensor, ...]
    """The latents after each step."""


@dataclass(frozen=True)
class Diffusers:
    """WanPipeline on a checkpoint: ``diffusers(shape, dtype)`` makes the same request."""

    checkpoint: Path
    made: dict[Any, Reference] = field(default_factory=dict)

    def pipeline(self, dtype: torch.dtype = torch.float32) -> Any:
        from diffusers import WanPipeline

        pipe = WanPipeline.from_pretrained(self.checkpoint, dtype=dtype)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def __call__(self, shape: str, dtype: torch.dtype = torch.float32) -> Reference:
        if (shape, dtype) not in self.made:
            self.made[shape, dtype] = self._generate(Shape.parse(shape), dtype)
        return self.made[shape, dtype]

    @torch.no_grad()
    def _generate(self, size: Shape, dtype: torch.dtype) -> Reference:
        pipe = self.pipeline(dtype)
        steps: list[Tensor] = []

        def keep(pipe: Any, step: int, timestep: Tensor, values: dict[str, Tensor]) -> Any:
            steps.append(values["latents"].float())
            return values

        text = pipe.encode_prompt(PROMPT, NEGATIVE_PROMPT, max_sequence_length=512)
        latents = pipe(
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
        z = vae_latents(latents, TINY.vae).to(dtype)
        return Reference(
            prompt_embeddings=np.concatenate([e.float().numpy() for e in text]),
            latents=latents,
            pixels=pipe.vae.decode(z, return_dict=False)[0].float().numpy(),
            steps=tuple(steps),
        )
