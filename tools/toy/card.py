"""The model card that a toy checkpoint carries. Knows figures, and no networks."""

from tools.toy.vae import Fidelity
from wanc.spec.model import Model


def model_card(model: Model, fidelity: Fidelity) -> str:
    """README.md of the checkpoint's folder."""
    return f"# {model.name}\n\n{fidelity}\n"
