"""The model card that a toy checkpoint carries. Knows figures, and no networks."""

from pathlib import Path

from jinja2 import Environment, StrictUndefined

from tools.toy.grammar import BACKGROUNDS, COLORS, DIRECTIONS, HELD_OUT, KINDS, SCENES
from tools.toy.vae import Fidelity
from wanc.spec.model import Model, Task

_TEMPLATE = Path(__file__).with_name("card.md.j2")
_PIPELINES: dict[Task, str] = {"t2v": "WanPipeline", "i2v": "WanImageToVideoPipeline"}


def model_card(model: Model, fidelity: Fidelity) -> str:
    """README.md of the checkpoint's folder."""
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        model=model,
        dit=model.transformer,
        sampling=model.sampling,
        fidelity=fidelity,
        pipeline=_PIPELINES[model.task],
        colors=COLORS,
        kinds=KINDS,
        directions=DIRECTIONS,
        backgrounds=BACKGROUNDS,
        scenes=len(SCENES),
        held_out=HELD_OUT,
    )
