"""Trains the toy checkpoints and writes them: ``python -m tools.toy``.

It can be stopped anywhere and goes on where it was; what is done is not done again. States and
curves are kept in out/toy, and the checkpoints go to wanc/checkpoints.

States are named by what they are made of: after a change of a schedule, that part and all that
builds on it are made anew. A change of a loss is not noticed: remove out/toy then.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from tools.toy.card import model_card
from tools.toy.data import make_data
from tools.toy.experts import BASE, ROUNDS, Times, train_expert
from tools.toy.models import new_networks, round_to_bf16, sentences_of, start_from, write_checkpoint
from tools.toy.training import Schedule, digest_of, short
from tools.toy.vae import Fidelity, gate, latent_statistics, train_vae
from wanc.digest import of_json
from wanc.spec.model import EXPERT_COMPONENTS, Expert, Model
from wanc.spec.presets import TOY_I2V, TOY_MODELS, TOY_T2V

FOLDER = Path("out/toy")
CHECKPOINTS = Path("wanc/checkpoints")
FRAMES, HEIGHT, WIDTH = 5, 128, 208
CLIPS_A_SCENE = {"t2v": 48, "i2v": 16}


def main() -> None:
    """All of it, or one expert, as the whole asks its processes to."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("what", nargs="*", help="nothing, or: expert MODEL SIDE VAE")
    what = arguments.parse_args().what
    FOLDER.mkdir(parents=True, exist_ok=True)
    if what:
        _, name, side, vae_digest = what
        torch.set_num_threads(1)
        _trained_expert(TOY_MODELS[name], side, vae_digest)
        return
    torch.set_num_threads(2)
    vae, fidelity = _trained_vae()
    vae_digest = digest_of(vae)
    print(f"VAE: {fidelity}", flush=True)
    if not fidelity.passes:
        sys.exit("the VAE is below its gate: no expert is trained on it")
    for model in (TOY_T2V, TOY_I2V):
        _encode_data(model, vae, vae_digest)
        if model.task == "t2v":
            _trained_base(vae_digest)
        _both_at_once(model, vae_digest)
        trained = new_networks(model) | {"vae": vae}
        for side in EXPERT_COMPONENTS:
            trained[EXPERT_COMPONENTS[side]] = _trained_expert(model, side, vae_digest)
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


def _encode_data(model: Model, vae: Any, vae_digest: str) -> None:
    """Once, for all that train on them."""
    file = _data_file(model, vae_digest)
    if not file.is_file():
        make_data(
            vae,
            clips_a_scene=CLIPS_A_SCENE[model.task],
            images=model.task == "i2v",
            shape=(FRAMES, HEIGHT, WIDTH),
        ).save(file)


def _data_file(model: Model, vae_digest: str) -> Path:
    made_of = of_json([vae_digest, CLIPS_A_SCENE[model.task], FRAMES, HEIGHT, WIDTH])
    return FOLDER / f"latents-{model.task}-{short(made_of)}.pt"


def _both_at_once(model: Model, vae_digest: str) -> None:
    """Trains the experts in a process each: two on one core each do more than one on two."""
    command = [sys.executable, "-m", "tools.toy", "expert", model.name]
    running = [subprocess.Popen([*command, side, vae_digest]) for side in EXPERT_COMPONENTS]
    try:
        codes = [process.wait() for process in running]
    except BaseException:
        for process in running:
            process.terminate()
        raise
    if any(codes):
        sys.exit("training an expert failed")


def _trained_expert(model: Model, side: Expert, vae_digest: str) -> Any:
    """An expert with its trained weights, trained if it is not yet."""
    transformer = new_networks(model)[EXPERT_COMPONENTS[side]]
    if model.task == "t2v":
        start_from(_trained_base(vae_digest), transformer)
    else:
        start_from(_trained_expert(TOY_T2V, side, vae_digest), transformer)
    data = _data_file(model, vae_digest)
    for number, schedule in enumerate(ROUNDS[model.task], start=1):
        _train(transformer, side, model, schedule, data, f"{model.name}-{side}-{number}")
    return transformer


def _trained_base(vae_digest: str) -> Any:
    """The network that the experts of text to video start from."""
    transformer = new_networks(TOY_T2V)["transformer"]
    _train(transformer, None, TOY_T2V, BASE, _data_file(TOY_T2V, vae_digest), "toy-base")
    return transformer


def _train(
    transformer: Any,
    side: Expert | None,
    model: Model,
    schedule: Schedule,
    data: Path,
    name: str,
) -> None:
    train_expert(
        transformer,
        Times.of(side, model.sampling),
        data,
        sentences_of(model, new_networks(model)["text_encoder"]),
        schedule,
        folder=FOLDER,
        name=name,
    )


if __name__ == "__main__":
    main()
