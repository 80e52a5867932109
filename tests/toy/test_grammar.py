"""The toy's scenes, their sentences, and how clips of them look to the judge of videos."""

from collections import Counter

import numpy as np
import pytest
import torch

from tools.toy.clips import any_scenes, draw
from tools.toy.grammar import HELD_OUT, SCENES, TRAINED, WORDS, Scene
from tools.toy.sight import look

PARTS = ("color", "kind", "direction", "background")


def clips_of(scenes, seed=0, **how):
    generator = torch.Generator().manual_seed(seed)
    size = {"frames": 5, "height": 128, "width": 208}
    return draw(scenes, generator=generator, **(size | how))


def frames_of(clips):
    return ((clips + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy()


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (
            ("red", "circle", "left", "dark"),
            "a red circle moving left over a dark background",
        ),
        ((None, "square", "up", None), "a square moving up"),
        (("blue", None, None, "light"), "a blue shape over a light background"),
        ((None, None, None, None), "a shape"),
    ],
)
def test_sentences(parts, sentence):
    assert Scene(*parts).sentence() == sentence
    assert set(sentence.split()) <= set(WORDS)


def test_held_out_scenes_are_of_every_part_and_not_trained():
    assert len(HELD_OUT) == 10
    assert len(TRAINED) == len(SCENES) - 10 == 86
    assert not set(HELD_OUT) & set(TRAINED)
    for part in PARTS:
        seen = Counter(getattr(scene, part) for scene in HELD_OUT)
        assert set(seen) == {getattr(scene, part) for scene in SCENES}
        assert max(seen.values()) - min(seen.values()) <= 1
    # each of their parts, and each pair of color and direction, is trained with others
    trained = {(scene.color, scene.direction) for scene in TRAINED}
    assert {(scene.color, scene.direction) for scene in HELD_OUT} <= trained


def test_every_scene_is_seen_as_it_is():
    for scene, frames in zip(SCENES, frames_of(clips_of(SCENES)), strict=True):
        seen = look(frames)
        assert seen.shows(scene, *PARTS), (scene, seen)
        assert seen.color_share > 0.85  # edges fade


def test_what_stands_still_or_is_not_there_has_no_direction():
    frames = frames_of(clips_of(SCENES[:1]))[0]
    assert look(np.repeat(frames[:1], 5, axis=0)).direction is None
    nothing = look(np.full_like(frames, 20))
    assert (nothing.color, nothing.kind, nothing.direction) == (None, None, None)
    assert nothing.background == "dark"


def test_a_shape_of_two_colors_has_a_share():
    frames = frames_of(clips_of([Scene("red", "square", "left", "dark")]))[0].copy()
    rows = np.flatnonzero((frames[0, :, :, 0] > 150).any(axis=1))
    frames[:, : rows.mean().round().astype(int)] = frames[
        :, : rows.mean().round().astype(int), :, ::-1
    ]
    assert 0.4 < look(frames).color_share < 0.6


def test_clips_lie_within_the_frame_or_a_crop_of_it():
    border = clips_of(SCENES)
    background = border[:, :, :, :1, :1]
    for edge in (border[..., 0, :], border[..., -1, :]):
        assert torch.equal(edge, background[..., 0, :].expand_as(edge))
    crops = clips_of(SCENES, height=64, width=64, margin_px=8.0)
    assert not torch.equal(crops[..., 0, :], crops[:, :, :, :1, 0].expand_as(crops[..., 0, :]))


def test_clips_are_of_their_seed():
    assert torch.equal(clips_of(SCENES[:4], seed=3), clips_of(SCENES[:4], seed=3))
    assert not torch.equal(clips_of(SCENES[:4], seed=3), clips_of(SCENES[:4], seed=4))
    scenes = [any_scenes(20, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert scenes[0] == scenes[1] != scenes[2]
