"""Pages on bundles that mean no good: nothing becomes markup, and no number hangs or ends it."""

import time

import pytest

from tests.pages import page_on, read, section
from tests.sound import Editor, edit, write_sound
from wanc.page.write import visible

BIG = 10**400
PLANTED = "<script>x</script>\"'&</svg><img src=//e.org onerror=x>"
"""What would be markup, were it not escaped."""


def test_nothing_of_a_bundle_becomes_markup(tmp_path, made):
    config = made(topology="tp2").config
    path = write_sound(tmp_path / "<b onload=x>", config)
    before = {(e.tag, *sorted(e.attributes)) for e in read(page_on(path)).below()}

    def plant(editor: Editor) -> None:
        editor.config["model"]["name"] = PLANTED
        editor.config["variant"]["placement"] = PLANTED
        editor.config["variant"]["target"] = PLANTED
        editor.config["requires"] = {PLANTED: [PLANTED]}
        for record in editor.config["programs"]:
            record["compile_key"] = {PLANTED: {"x": PLANTED}, "flags": [PLANTED]}
            record["collectives"] = {PLANTED: 3}
            record["program"]["name"] += PLANTED
        for stage in editor.config["schedule"]["stages"]:
            stage["name"] += PLANTED
            for call in stage["calls"]:
                call["program"] += PLANTED
                for binding in call["inputs"]:
                    binding["feed"] = binding["feed"] and binding["feed"] + PLANTED
            for result in stage["results"]:
                result["value"] += PLANTED
        for feed in editor.config["schedule"]["feeds"]:
            feed["name"] += PLANTED

    edit(path, plant)
    html = page_on(path)
    assert "<script" not in html
    document = read(html)
    after = {(e.tag, *sorted(e.attributes)) for e in document.below()}
    allowed = before | {("p",), ("p", "class"), ("ul", "class"), ("li",)}
    assert after <= allowed
    told = document.one("section", id="variant-1").text
    assert told.count(" ".join(PLANTED.split())) > 40
    assert document.one("h1").text == "<b onload=x>"


def test_marks_that_turn_text_around_are_shown_as_what_they_are():
    assert visible("a\u202eb\x00c\nd") == "a\\u202eb\\x00c\\nd"
    assert visible("größe 漢字") == "größe 漢字"
    assert visible(12345) == 12345
    assert visible(BIG) == "too large to show"


def _without_ranks(config: dict) -> None:
    """With results and tiles on some the bundle would be refused before anything is shown."""
    config["mesh"].update(coordinates=[], cores=[])
    config["tiles"].update(ranks=[])
    for stage in config["schedule"]["stages"]:
        for result in stage["results"]:
            result["ranks"] = []


def _deep(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


SIZES = {
    "width": lambda c: c["variant"]["shape"].update(width_px=10**12),
    "frames": lambda c: c["variant"]["shape"].update(frames=BIG),
    "ranks": lambda c: c["mesh"]["topology"].update(cp=10**9),
    "no ranks": _without_ranks,
    "cores": lambda c: c["mesh"].update(cores=[BIG] * 4),
    "places": lambda c: c["mesh"]["coordinates"][0].update(cp=BIG),
    "tiles": lambda c: c["tiles"]["tiles"][0].update(column=-BIG, columns=BIG),
    "stride": lambda c: c["model"]["vae"].update(spatial_stride=BIG),
    "layers": lambda c: c["model"]["transformer"].update(layers=10**12),
    "replicas": lambda c: c["programs"][0]["program"].update(replica_count=BIG),
    "tensor": lambda c: c["programs"][0]["program"]["inputs"][0].update(shape=[BIG] * 50_000),
    "stages": lambda c: c["schedule"]["stages"][0].update(name="another"),
    "key": lambda c: c["programs"][0].update(compile_key={"deep": _deep(900)}),
    "dims": lambda c: c["schedule"]["feeds"][0].update(shape=[BIG] * 3),
}


@pytest.mark.parametrize("what", SIZES)
def test_sizes_of_no_plan_are_shown_as_far_as_they_can_be(tmp_path, made, what):
    path = write_sound(tmp_path / "b", made("432x240x5", "tp2-cp2").config)
    edit(path, lambda editor: SIZES[what](editor.config))
    start = time.monotonic()
    html = page_on(path)
    assert time.monotonic() - start < 5
    assert len(html) < 2_000_000
    found = section(html, 1)
    assert "is not what this version of wanc plans" in found.text or what == "key"
    assert "text_encoder" in found.text
    if what in ("width", "ranks", "no ranks", "places"):
        assert "not drawn" in found.text


def test_a_config_of_another_plan_says_what_differs(tmp_path, made):
    small = write_sound(tmp_path / "small", made("432x240x5", "tp2").config)
    edit(small, lambda editor: editor.config["tokens"].update(chunk_tokens=7))
    told = section(page_on(small), 1)
    assert "its tokens is not what the plan has" in told.text
    assert not [each for each in told.all("b") if each.text == "Memory of a rank"]
    assert [each for each in told.all("b") if each.text == "Ranks"], "what is known is drawn"
