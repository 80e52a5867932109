"""Compiled bundles and diffusers' own results, made once for all tests of this folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wanc.targets.cpu import CpuTarget

from wanc.bundle.store import open_bundle
from wanc.cache import Cache
from wanc.compile import compile_bundle
from wanc.plan.plan import Plan, make_plan
from wanc.progress import Silent
from wanc.run.load import load
from wanc.run.pipeline import Generation, prepare, sample
from wanc.run.prompt import Tokenizer
from wanc.run.record import Stopwatch
from wanc.run.request import Guidance, RunRequest, sampling_values
from wanc.run.session import Session
from wanc.spec.presets import NEGATIVE_PROMPT, TINY
from wanc.spec.shape import Shape
from wanc.spec.target import Precision
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant

PROMPT = "a lighthouse above a stormy sea"
STEPS = 4
"""At shift 12 three steps are the high-noise expert's and one is the other's."""
SEED = 1


def tiny_plan(
    shape: str, topology: str, precision: Precision = "fp32", options: Options | None = None
) -> Plan:
    """A plan of the tiny model."""
    variant = Variant(
        task="t2v",
        shape=Shape.parse(shape),
        topology=Topology.parse(topology),
        placement="linear",
        precision=precision,
        target="cpu",
    )
    return make_plan(TINY, variant, options or Options())


@dataclass(frozen=True)
class Wanc:
    """Compiles and runs the tiny checkpoint."""

    checkpoint: Path
    cache: Cache
    folder: Path

    def compile(self, plans: list[Plan], bundle: Path, options: Options | None = None) -> str:
        """The digest of the bundle that was written."""
        return compile_bundle(
            plans,
            options or Options(),
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
            self.compile([tiny_plan(shape, topology, precision, options)], path, options)
        return path

    def session(self, bundle: Path) -> Session:
        """A session on the bundle's first variant."""
        opened = open_bundle(bundle)
        session = load(opened, opened.variants[0].config, self.checkpoint)
        prepare(session, Silent())
        return session

    def request(self, **changed: Any) -> RunRequest:
        """The request that parity tests make."""
        values: dict[str, Any] = {
            "bundle": self.folder,
            "weights": self.checkpoint,
            "prompt": PROMPT,
            "output": self.folder / "unused.mp4",
            "steps": STEPS,
            "seed": SEED,
            "guidance": Guidance(high=4.0, low=3.0),
        }
        return RunRequest(**{**values, **changed})

    def sample(self, session: Session, **changed: Any) -> Generation:
        """Generate with a session."""
        request = self.request(**changed)
        values = sampling_values(request, session.config)
        tokenizer = Tokenizer(self.checkpoint)
        return sample(session, tokenizer, request, values, Stopwatch(), Silent())

    def generation(self, *bundle: Any, **how: Any) -> Generation:
        """Compile where needed, and generate."""
        session = self.session(self.bundle(*bundle, **how))
        try:
            return self.sample(session)
        finally:
            session.engine.close()


@pytest.fixture(scope="session")
def wanc(
    tiny_checkpoint: Path, shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Wanc:
    """wanc on the tiny checkpoint; workers share what is compiled."""
    return Wanc(tiny_checkpoint, Cache(shared_folder / "cache"), tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def diffusers_result(tiny_checkpoint: Path) -> Callable[..., Generation]:
    """What diffusers' WanPipeline makes of the same request, by shape and dtype."""
    import torch
    from diffusers import WanPipeline

    from wanc.run.feeds import vae_latents

    made: dict[Any, Generation] = {}

    @torch.no_grad()
    def generate(shape: str, dtype: torch.dtype = torch.float32) -> Generation:
        if (shape, dtype) in made:
            return made[shape, dtype]
        pipe = WanPipeline.from_pretrained(tiny_checkpoint, dtype=dtype)
        pipe.set_progress_bar_config(disable=True)
        size = Shape.parse(shape)
        embeddings = pipe.encode_prompt(PROMPT, NEGATIVE_PROMPT, max_sequence_length=512)
        latents = pipe(
            prompt=PROMPT,
            negative_prompt=NEGATIVE_PROMPT,
            height=size.height_px,
            width=size.width_px,
            num_frames=size.frames,
            num_inference_steps=STEPS,
            guidance_scale=4.0,
            guidance_scale_2=3.0,
            generator=torch.Generator("cpu").manual_seed(SEED),
            output_type="latent",
        ).frames.float()
        z = vae_latents(latents, TINY.vae).to(dtype)
        pixels = pipe.vae.decode(z, return_dict=False)[0].float().numpy()
        text = np.concatenate([e.float().numpy() for e in embeddings])
        made[shape, dtype] = Generation(prompt_embeddings=text, latents=latents, pixels=pixels)
        return made[shape, dtype]

    return generate
