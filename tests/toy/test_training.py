"""How the toy is trained: what a step is asked, and that it can be stopped anywhere."""

from itertools import count

import pytest
import torch
from torch import nn

from tools.toy import training
from tools.toy.experts import Times
from tools.toy.grammar import SCENES
from tools.toy.models import new_networks, sentences_of, start_from
from tools.toy.prompts import DROPPED, LEFT_OPEN, said_of, use_pads_as_one
from tools.toy.training import Schedule, train
from wanc.spec.model import TEXT_TOKENS
from wanc.spec.presets import TOY_I2V, TOY_T2V

torch.set_num_threads(1)  # test processes share few cores, and OpenMP's threads spin as they wait


@pytest.fixture(scope="module")
def networks():
    return new_networks(TOY_T2V)


@pytest.fixture(scope="module")
def sentences(networks):
    return sentences_of(TOY_T2V, networks["text_encoder"])


@torch.no_grad()
def test_one_pad_does_for_all(networks, sentences):
    """fp32; 512 tokens are added in another order than 13."""
    transformer = networks["transformer"]
    nn.init.normal_(transformer.proj_out.weight, std=0.1)
    latents = torch.randn(2, 16, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    text, bias = sentences.encoded([SCENES[0].sentence(), ""])
    padded = torch.zeros(2, TEXT_TOKENS, text.shape[-1])
    padded[:, : text.shape[1]] = text
    timesteps = torch.tensor([900, 500])
    whole = transformer(latents, timesteps, padded).sample
    for processor in use_pads_as_one(transformer):
        processor.bias = bias
    short = transformer(latents, timesteps, text).sample
    assert (whole - short).abs().max() < 1e-5 * whole.abs().max()


@torch.no_grad()
def test_an_expert_that_sees_images_begins_blind_to_them():
    narrow = new_networks(TOY_T2V)["transformer"]
    nn.init.normal_(narrow.proj_out.weight, std=0.1)
    wide = new_networks(TOY_I2V)["transformer"]
    start_from(narrow, wide)
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 36, 2, 4, 4, generator=generator)
    text, timestep = torch.randn(1, 13, 64, generator=generator), torch.tensor([900])
    expected = narrow(latents[:, :16], timestep, text).sample
    assert torch.allclose(wide(latents, timestep, text).sample, expected, atol=1e-6)


def test_first_weights_are_the_same_every_time(networks):
    again = new_networks(TOY_T2V)["vae"].state_dict()
    for name, weight in networks["vae"].state_dict().items():
        assert torch.equal(weight, again[name])


@pytest.mark.parametrize(
    ("expert", "low", "high"), [("high_noise", 0.875, 1.0), ("low_noise", 0.0, 0.875)]
)
def test_times_are_on_the_expert_s_side_and_as_dense_as_the_grid(expert, low, high):
    times = Times.of(expert, TOY_T2V.sampling).draw(10_000, torch.Generator().manual_seed(0))
    assert low <= times.min() < low + 0.01
    assert high - 0.01 < times.max() <= high
    shift = TOY_T2V.sampling.flow_shift
    grid = shift * (x := torch.linspace(1, 0.001, 10_000)) / (1 + (shift - 1) * x)
    grid = grid[(low <= grid) & (grid <= high)]
    assert times.mean() == pytest.approx(grid.mean().item(), abs=2e-3)


def test_prompts_are_dropped_left_open_or_whole():
    generator = torch.Generator().manual_seed(0)
    scene, said = SCENES[0], []
    for _ in range(4_000):
        said.append(said_of(scene, generator))
    share = {text: said.count(text) / len(said) for text in set(said)}
    assert share[""] == pytest.approx(DROPPED, abs=0.02)
    open_but_all_named = LEFT_OPEN / 16
    assert share[scene.sentence()] == pytest.approx(
        1 - DROPPED - LEFT_OPEN + open_but_all_named, abs=0.03
    )
    assert len(share) == 17


class StopError(Exception):
    """As if the process had ended."""


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_stopped_training_goes_on_to_the_same_weights(tmp_path, monkeypatch, average):
    monkeypatch.setattr(training, "_SAVE_EVERY_S", 0.0)
    schedule = Schedule(steps=8, learning_rate=0.1, average=average)

    def trained(folder, stop_at=None):
        torch.manual_seed(0)
        network = nn.Linear(3, 1)
        folder.mkdir(exist_ok=True)

        steps = count()

        def loss_of(generator):
            if next(steps) == stop_at:
                raise StopError
            return network(torch.randn(4, 3, generator=generator)).square().mean()

        train(network, loss_of, schedule, folder=folder, name="line")
        return network.weight

    whole = trained(tmp_path / "whole")
    with pytest.raises(StopError):
        trained(tmp_path / "stopped", stop_at=5)
    assert torch.equal(trained(tmp_path / "stopped"), whole)
    assert torch.equal(trained(tmp_path / "stopped", stop_at=0), whole)  # is not done again
    assert (tmp_path / "whole" / "line.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("changed", ["steps", "learning_rate", "seed", "data", "first weights"])
def test_what_was_made_of_something_else_is_not_gone_on_from(tmp_path, changed):
    """Each changes the weights, or is told of in ``data``."""

    def trained(changed=None):
        schedule = Schedule(
            steps=3 + (changed == "steps"),
            learning_rate=0.2 if changed == "learning_rate" else 0.1,
            seed=int(changed == "seed"),
        )
        torch.manual_seed(changed == "first weights")
        network = nn.Linear(3, 1)
        asked = []

        def loss_of(generator):
            asked.append(generator)
            return network(torch.randn(4, 3, generator=generator)).square().mean()

        data = "others" if changed == "data" else ""
        train(network, loss_of, schedule, folder=tmp_path, name="line", data=data)
        return len(asked)

    assert trained() == 3
    assert trained(changed) == 3 + (changed == "steps")
    assert trained() == 0
