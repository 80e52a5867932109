"""``make bench``: a DiT step, a VAE decode, a whole generation and start to mp4, against diffusers.

Every pair is measured in this one process in turn, after a warm-up. Medians are printed, and kept
as one line of JSON with what they were measured on.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bench.command_line import host_step, light_rows, lowering
from bench.model import MODEL, SHAPE
from bench.transfer import Seconds, show_transfers, transfer_rows
from bench.verify import Rates, show_verify, start_up, verify_rows
from wanc.cache.store import Cache
from wanc.compile import compile_bundle
from wanc.plan.plan import make_plan
from wanc.processes.world import Alone
from wanc.progress import Silent
from wanc.run.condition import Condition
from wanc.run.job import Loaded, make_job
from wanc.run.outputs import Files
from wanc.run.pipeline import feed_positions, load_variant, predict_noise, sample
from wanc.run.prompt import Tokenizer
from wanc.run.request import LoadRequest, RunRequest, SamplingValues, sampling_values
from wanc.run.sampler import draw_noise
from wanc.run.session import Session
from wanc.run.text import encode_prompts
from wanc.run.vae import decode
from wanc.spec.presets import NEGATIVE_PROMPT
from wanc.spec.shape import Shape
from wanc.spec.topology import Topology
from wanc.spec.variant import Options, Variant
from wanc.targets.cpu import CpuTarget
from wanc.tiny import write_tiny_checkpoint

PROMPT = "a lighthouse above a stormy sea"
REPEATS = 7
STEPS = 4
TIMESTEP = 900.0
SEED = 1
KEPT = Path("out/bench.jsonl")
TOOLS = ("jax", "torch", "diffusers")


def median_ms(*runs: Callable[[], object]) -> list[float]:
    """Median milliseconds of each, measured in turn so that noise meets all of them."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(REPEATS):
        for run, found in zip(runs, times, strict=True):
            started = time.perf_counter()
            run()
            found.append(1000 * (time.perf_counter() - started))
    return [statistics.median(found) for found in times]


def compiled(folder: Path, checkpoint: Path) -> tuple[Path, float]:
    """A bundle of one rank, and the seconds that it took."""
    variant = Variant(
        task="t2v",
        shape=Shape.parse(SHAPE),
        topology=Topology.parse("tp1"),
        placement="linear",
        precision="fp32",
        target="cpu",
    )
    report = compile_bundle(
        [make_plan(MODEL, variant, Options())],
        CpuTarget(),
        folder / "bundle",
        cache=Cache(folder / "cache"),
        jobs=2,
        progress=Silent(),
    )
    return folder / "bundle", report.seconds


def step_row(
    session: Session, tokenizer: Tokenizer, values: SamplingValues, pipe: Any
) -> dict[str, float]:
    """One guided DiT step: both branches of one expert."""
    prompts = [tokenizer(text) for text in (PROMPT, NEGATIVE_PROMPT)]
    state: Any = {}
    with torch.no_grad():
        embeddings = torch.from_numpy(encode_prompts(session, prompts, values, state))
    grid = session.config.geometry
    size = (grid.latent_frames, grid.latent_rows, grid.latent_columns)
    latents = draw_noise(SEED, (1, MODEL.transformer.in_channels, *size))
    feed_positions(session, Condition())

    def wanc() -> object:
        return predict_noise(session, latents, TIMESTEP, "high_noise", values, state)

    @torch.no_grad()
    def theirs(model: Any) -> torch.Tensor:
        timestep = torch.tensor([TIMESTEP])
        return torch.cat([model(latents, timestep, e[None])[0] for e in embeddings])

    compiled_model = torch.compile(pipe.transformer)
    ours, eager, compiled_ms = median_ms(
        wanc, lambda: theirs(pipe.transformer), lambda: theirs(compiled_model)
    )
    return {"wanc": ours, "diffusers": eager, "torch.compile": compiled_ms}


def decode_row(session: Session, pipe: Any) -> dict[str, float]:
    """A VAE decode of the whole video."""
    grid = session.config.geometry
    size = (grid.latent_frames, grid.latent_rows, grid.latent_columns)
    latents = draw_noise(SEED, (1, MODEL.vae.z_channels, *size))

    @torch.no_grad()
    def theirs() -> object:
        return pipe.vae.decode(latents)

    ours, eager = median_ms(lambda: decode(session, latents, Silent()), theirs)
    return {"wanc": ours, "diffusers": eager}


def generation_row(loaded: Loaded, request: RunRequest, pipe: Any) -> dict[str, float]:
    """Prompt to pixels, everything loaded and warm."""
    shape = Shape.parse(SHAPE)
    job = make_job(loaded, request, Files(), Silent())
    values = job.values

    def wanc() -> object:
        return sample(loaded, job)

    def theirs() -> object:
        return pipe(
            prompt=PROMPT,
            negative_prompt=NEGATIVE_PROMPT,
            height=shape.height_px,
            width=shape.width_px,
            num_frames=shape.frames,
            num_inference_steps=STEPS,
            guidance_scale=values.guidance_high,
            guidance_scale_2=values.guidance_low,
            generator=torch.Generator("cpu").manual_seed(SEED),
        )

    ours, eager = median_ms(wanc, theirs)
    return {"wanc": ours, "diffusers": eager}


def start_row(load: LoadRequest, values: SamplingValues, folder: Path) -> dict[str, float]:
    """A new process from its start to its mp4."""
    both = ["--weights", str(load.weights), "--prompt", PROMPT, "--shape", SHAPE]
    both += ["--steps", str(STEPS), "--seed", str(SEED)]
    both += ["--guidance", f"high={values.guidance_high},low={values.guidance_low}"]
    peers = [
        [*("wanc", "run", *both), *("--bundle", str(load.bundle), "-o", str(folder / "v.mp4"))],
        ["bench.diffusers_run", *both, "--fps", str(values.fps), "-o", str(folder / "d.mp4")],
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    runs = [
        lambda line=[sys.executable, "-m", *peer]: subprocess.run(
            line, check=True, capture_output=True, env=environment
        )
        for peer in peers
    ]
    ours, eager = median_ms(*runs)
    return {"wanc": ours, "diffusers": eager}


def main() -> None:
    from diffusers import WanPipeline

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lowered = lowering(folder)  # first, for the peak is that of all processes so far
        checkpoint = folder / "checkpoint"
        write_tiny_checkpoint(checkpoint, model=MODEL)
        bundle, compile_s = compiled(folder, checkpoint)
        pipe = WanPipeline.from_pretrained(checkpoint)
        pipe.set_progress_bar_config(disable=True)
        load = LoadRequest(bundle=bundle, weights=checkpoint)
        request = RunRequest(prompt=PROMPT, steps=STEPS, seed=SEED)
        with closing(load_variant(load, Alone(), Silent())) as loaded:
            session = loaded.session
            values = sampling_values(request, session.config)
            rows = {
                "DiT step, two branches": step_row(session, loaded.tokenizer, values, pipe),
                "VAE decode": decode_row(session, pipe),
                "generate, warm": generation_row(loaded, request, pipe),
            }
        rows["start to mp4"] = start_row(load, values, folder)
        commands = light_rows(bundle)
        verified = verify_rows(bundle), start_up(bundle)
    transfers = transfer_rows()
    host = host_step()
    show(rows, compile_s)
    show_commands(commands, lowered, host)
    show_verify(*verified)
    show_transfers(transfers)
    keep(rows, compile_s, commands, lowered, host, verified, transfers)


def show(rows: dict[str, dict[str, float]], compile_s: float) -> None:
    """Print what is measured against diffusers."""
    print(f"model: width {MODEL.transformer.width}, {MODEL.transformer.layers} layers, ", end="")
    print(f"VAE base {MODEL.vae.decoder_base_width}; {SHAPE}, fp32, 1 rank, {os.cpu_count()} cores")
    print(f"compile of the bundle, cold cache: {compile_s:.1f} s")
    print(f"{'median of ' + str(REPEATS) + ', ms':<26}{'wanc':>8}{'diffusers':>11}", end="")
    print(f"{'faster':>8}{'torch.compile':>15}")
    for what, row in rows.items():
        other = f"{row['torch.compile']:.0f}" if "torch.compile" in row else "-"
        ratio = row["diffusers"] / row["wanc"]
        print(f"{what:<26}{row['wanc']:>8.0f}{row['diffusers']:>11.0f}{ratio:>7.2f}x{other:>15}")


def show_commands(
    commands: dict[str, float], lowered: tuple[float, float], host: dict[str, float]
) -> None:
    """Print what people wait for in a terminal."""
    print(f"\n{'median of ' + str(REPEATS) + ' processes, ms':<32}{'wanc':>8}")
    for what, ms in commands.items():
        print(f"{what:<32}{ms:>8.0f}")
    seconds, gigabytes = lowered
    print(f"lowering of A14B, 64 ranks, 480p, once: {seconds:.1f} s, peak {gigabytes:.2f} GB")
    print(
        f"host's work in a step of A14B, 64 ranks, 480p: {host['step']:.0f} ms on one core, ",
        end="",
    )
    print(f"{host['scheduler']:.0f} of it diffusers' scheduler")


def keep(
    rows: dict[str, dict[str, float]],
    compile_s: float,
    commands: dict[str, float],
    lowered: tuple[float, float],
    host: dict[str, float],
    verified: tuple[dict[str, Rates], float],
    transfers: Seconds | None,
) -> None:
    """Add a line to the file of measurements."""
    kept = {
        **circumstances(),
        "compile_s": compile_s,
        "rows_ms": rows,
        "commands_ms": commands,
        "lowering_s": lowered[0],
        "lowering_peak_gb": lowered[1],
        "host_step_ms": host,
        "verify_bytes_per_s": verified[0],
        "verify_start_ms": verified[1],
        "transfer_s": transfers,
    }
    KEPT.parent.mkdir(exist_ok=True)
    with KEPT.open("a") as file:
        file.write(json.dumps(kept) + "\n")
    print(f"kept in {KEPT}")


def circumstances() -> dict[str, Any]:
    """When, of what and on what machine."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": {tool: version(tool) for tool in TOOLS},
        "cores": os.cpu_count(),
        "cpu": cpu_model(),
    }


def commit() -> str | None:
    """The commit of these sources, marked where they differ from it; None where git knows none."""
    line = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(line, capture_output=True, text=True, cwd=Path(__file__).parent)
    except OSError:
        return None
    return found.stdout.strip() or None


def cpu_model() -> str | None:
    """Linux's name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else None


if __name__ == "__main__":
    main()
