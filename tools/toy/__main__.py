"""Trains the toy checkpoints and writes them: ``python -m tools.toy``.

It can be stopped anywhere and goes on where it was; what is done is not done again. States, curves
and a log of figures are kept in out/toy, and the checkpoints go to wanc/checkpoints.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tools.toy.card import model_card
from tools.toy.data import Data, make_data
from tools.toy.experts import SCHEDULES, Times, train_expert
from tools.toy.models import new_networks, round_to_bf16, sentences_of, widen, write_checkpoint
from tools.toy.vae import Fidelity, gate, latent_statistics, train_vae
from wanc.spec.model import EXPERT_COMPONENTS, Expert, Model
from wanc.spec.presets import TOY_I2V, TOY_T2V

FOLDER = Path("out/toy")
CHECKPOINTS = Path("wanc/checkpoints")
FRAMES, HEIGHT, WIDTH = 5, 128, 208
CLIPS_A_SCENE = {"t2v": 48, "i2v": 24}


def main() -> None:
    """All of it, or with ``expert MODEL SIDE`` one expert, as the whole asks its processes to."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("what", nargs="*", help="nothing, or: expert toy-t2v high_noise")
    what = arguments.parse_args().what
    FOLDER.mkdir(parents=True, exist_ok=True)
    if what:
        _, name, side = what
        torch.set_num_threads(1)
        _trained_expert({"toy-t2v": TOY_T2V, "toy-i2v": TOY_I2V}[name], side)
        return
    torch.set_num_threads(2)
    vae, fidelity = _trained_vae()
    print(f"VAE: {fidelity}", flush=True)
    if not fidelity.passes:
        sys.exit("the VAE is below its gate: no expert is trained on it")
    for model in (TOY_T2V, TOY_I2V):
        _data(model, vae)
        _both_at_once(model)
        trained = new_networks(model) | {"vae": vae}
        for side in EXPERT_COMPONENTS:
            trained[EXPERT_COMPONENTS[side]] = _trained_expert(model, side)
        write_checkpoint(CHECKPOINTS / model.name, model, trained, model_card(model, fidelity))
        print(f"wrote {CHECKPOINTS / model.name}", flush=True)


def _trained_vae() -> tuple[Any, Fidelity]:
    """The VAE as it is stored, its config with the statistics of its latents; and its fidelity."""
    shape = {"frames": FRAMES, "height": HEIGHT, "width": WIDTH}
    vae = new_networks(TOY_T2V)["vae"]
    train_vae(vae, FOLDER, **shape)
    round_to_bf16(vae.eval())
    mean, std = latent_statistics(vae, **shape)
    vae.register_to_config(latents_mean=mean, latents_std=std)
    return vae, gate(vae, **shape)


def _data(model: Model, vae: Any) -> Data:
    """Encoded once, then read."""
    file = FOLDER / f"latents-{model.task}.pt"
    if not file.is_file():
        make_data(
            vae,
            clips_a_scene=CLIPS_A_SCENE[model.task],
            images=model.task == "i2v",
            shape=(FRAMES, HEIGHT, WIDTH),
        ).save(file)
    return Data.read(file)


def _both_at_once(model: Model) -> None:
    """Trains the experts in a process each: two on one core each do more than one on two."""
    command = [sys.executable, "-m", "tools.toy", "expert", model.name]
    running = [subprocess.Popen([*command, side]) for side in EXPERT_COMPONENTS]
    try:
        codes = [process.wait() for process in running]
    except BaseException:
        for process in running:
            process.terminate()
        raise
    if any(codes):
        sys.exit("training an expert failed")


def _trained_expert(model: Model, side: Expert) -> Any:
    """An expert with its trained weights, trained if it is not yet."""
    networks = new_networks(model)
    transformer = networks[EXPERT_COMPONENTS[side]]
    if model.task == "i2v":
        widen(_trained_expert(TOY_T2V, side), transformer)
    train_expert(
        transformer,
        Times.of(side, model.sampling),
        lambda: Data.read(FOLDER / f"latents-{model.task}.pt"),
        sentences_of(model, networks["text_encoder"]),
        SCHEDULES[model.task],
        folder=FOLDER,
        name=f"{model.name}-{side}",
    )
    return transformer


if __name__ == "__main__":
    main()
