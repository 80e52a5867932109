"""Options that several commands share."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from wanc.spec.checkpoint import checkpoint_directory
from wanc.spec.model import EXPERT_COMPONENTS
from wanc.spec.presets import PRESETS, RUN_PRESETS, TOY_MODELS
from wanc.spec.target import PLACEMENTS, PRECISIONS, TARGETS
from wanc.spec.variant import ATTENTIONS, TILE_GRIDS


def starting(values: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell completes the start of a value to; a file, where none starts so."""
    return lambda incomplete: [value for value in values() if value.startswith(incomplete)]


def _samplers() -> Iterable[str]:
    from wanc.run.request import SAMPLERS

    return SAMPLERS


def _fits() -> Iterable[str]:
    from wanc.run.image import FITS

    return FITS


def weights(what: str) -> Any:
    """The option of a checkpoint, by its directory or by the name that one has in wanc."""
    return typer.Option(
        "--weights",
        help=what,
        parser=checkpoint_directory,
        metavar="DIRECTORY",
        autocompletion=starting(lambda: TOY_MODELS),
    )


SetFile = Annotated[
    Path | None, typer.Argument(metavar="[SET.yaml]", help="A shape set; flags override it.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A preset, or a directory in diffusers layout: only configs are read. "
        "[default: wan2.2-t2v-a14b]",
        autocompletion=starting(lambda: PRESETS),
    ),
]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="WIDTHxHEIGHTxFRAMES; may be repeated.")
]
Topologies = Annotated[
    list[str] | None,
    typer.Option("--topology", help="As tp4-cp8-cfg2; may be repeated. [default: tp1]"),
]
PrecisionName = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="fp32 or bf16. [default: the target's]",
        autocompletion=starting(lambda: PRECISIONS),
    ),
]
PlacementName = Annotated[
    str | None,
    typer.Option(
        "--placement",
        help="How ranks lie on the fabric: linear, trn2-torus, or the axes from the fastest on, as "
        "tp-cfg-cp. [default: the target's]",
        autocompletion=starting(lambda: PLACEMENTS),
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="cpu, trn2, trn3, or auto. [default: auto]",
        autocompletion=starting(lambda: (*TARGETS, "auto")),
    ),
]
Blocks = Annotated[
    int | None,
    typer.Option(
        "--blocks-per-program",
        help="Transformer blocks in one program; divides the layers. [default: the target's]",
    ),
]
AttentionName = Annotated[
    str | None,
    typer.Option(
        "--attention",
        help="Over cp ranks: ring or allgather. [default: ring]",
        autocompletion=starting(lambda: ATTENTIONS),
    ),
]
VaeTiles = Annotated[
    str | None,
    typer.Option(
        "--vae-tiles",
        help="Tile grid: even, or diffusers' own. [default: even]",
        autocompletion=starting(lambda: TILE_GRIDS),
    ),
]
MaxRanks = Annotated[
    int | None, typer.Option("--max-ranks", min=1, help="Refuse topologies of more ranks.")
]
WhichShape = Annotated[
    str | None, typer.Option("--shape", help="Which variant, where there are several.")
]
WhichTopology = Annotated[
    str | None, typer.Option("--topology", help="Which variant, where there are several.")
]
WhichPrecision = Annotated[
    str | None, typer.Option("--precision", help="Which variant, where there are several.")
]
BundlePath = Annotated[
    Path, typer.Option("--bundle", help="The compiled bundle, or a reference to one in a registry.")
]
Weights = Annotated[
    Path, weights("A checkpoint directory, prepared or not; toy-t2v and toy-i2v come with wanc.")
]
Output = Annotated[
    Path,
    typer.Option("--output", "-o", help="The video to write; of run --prompts, their folder."),
]
Prompt = Annotated[str, typer.Option("--prompt", help="What to show.")]
Negative = Annotated[
    str | None, typer.Option("--negative", help="What not to show. [default: the official text]")
]
FirstImage = Annotated[Path | None, typer.Option("--image", help="What the video begins with.")]
LastImage = Annotated[Path | None, typer.Option("--last-image", help="What the video ends with.")]
FitName = Annotated[
    str | None,
    typer.Option(
        "--fit",
        help="Images to size: crop, pad or stretch. [default: crop]",
        autocompletion=starting(_fits),
    ),
]
PresetName = Annotated[
    str | None,
    typer.Option(
        "--preset",
        help="Where values come from that are not given: official, or vllm-omni. "
        "[default: official]",
        autocompletion=starting(lambda: RUN_PRESETS),
    ),
]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Denoising steps. [default: the model's]")
]
GuidanceScale = Annotated[
    str | None,
    typer.Option("--guidance", help="4 for both experts, or high=4,low=3. [default: the model's]"),
]
FlowShift = Annotated[float | None, typer.Option("--flow-shift", help="[default: the model's]")]
SamplerName = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        help="unipc, euler or dpm++. [default: unipc]",
        autocompletion=starting(_samplers),
    ),
]
ExpertName = Annotated[
    str | None,
    typer.Option(
        "--expert",
        help="For all steps: high_noise or low_noise. [default: both]",
        autocompletion=starting(lambda: EXPERT_COMPONENTS),
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="[default: drawn once, and printed]")]
FormatName = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="mp4, mkv (lossless), webp, gif, or png for a folder of frames. "
        "[default: the output's suffix]",
    ),
]
Crf = Annotated[
    int | None, typer.Option("--crf", help="Of mp4: 0, best, to 51, smallest. [default: 18]")
]
VaeRanks = Annotated[
    int | None,
    typer.Option("--vae-ranks", min=1, help="Ranks that work on VAE tiles. [default: all]"),
]
LocalProcesses = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        help="Local processes that share the ranks. [default: what suits the target]",
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        "--interface",
        help="Network interface, or its address, that sockets bind. [default: loopback, or the "
        "one that leads to MASTER_ADDR]",
    ),
]
StartTimeout = Annotated[
    float, typer.Option("--start-timeout", min=1, help="Seconds for processes to meet.")
]
StallTimeout = Annotated[
    float | None,
    typer.Option(
        "--stall-timeout",
        min=1,
        help="Seconds for any one step. [default: from the plan and the steps seen]",
    ),
]
RequireSignature = Annotated[
    list[Path] | None,
    typer.Option(
        "--require-signature",
        metavar="PUBLIC_KEY",
        help="Refuse a bundle that this key did not sign; may be repeated: any one will do.",
    ),
]
PassphraseEnv = Annotated[
    str | None,
    typer.Option(
        "--passphrase-env", metavar="NAME", help="Environment variable with the key's passphrase."
    ),
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", help="File whose first line is the key's passphrase."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, errors too.")]
Delete = Annotated[
    bool, typer.Option("--delete", help="Remove them. Without it, they are only shown.")
]
PlainHttp = Annotated[
    bool,
    typer.Option("--plain-http", help="Speak HTTP without TLS to a registry on another machine."),
]
Transfers = Annotated[
    int, typer.Option("--jobs", min=1, max=64, help="Blobs on their way at once.")
]
