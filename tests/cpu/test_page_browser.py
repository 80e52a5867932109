"""Pages in a real browser: nothing is asked for or complained of, and all of it can be seen."""

import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.browser import Browser
from tests.needs import needs
from tests.pages import full_set, page_on
from tests.sound import write_sound
from tests.unit.conftest import variant_of

pytestmark = pytest.mark.xdist_group("browser")  # that one is started once

LEAST_COLORS, OF_PX = 20, 100
"""Colours of that many pixels: paper, text, lines, parts of bars, ranks, tiles and overlaps."""
LEAST_TEXT_PX = 8
"""Of the letters' box in drawings, which is a little more than the font's size."""

FAULTY = """<!doctype html><title>faulty</title>
<img src="http://127.0.0.1:9/missing.png" alt="">
<div style="width: 2000px">wide</div>
<svg width="0" height="0"></svg>
<script>console.error("complaint"); throw new Error("thrown")</script>
"""


def chromium() -> str:
    """Where it is."""
    program = shutil.which("chromium")
    needs(program is not None, "chromium on PATH")
    return str(program)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(chromium()) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """Addresses of a page on a small variant and of one on a set of full size."""
    folder = tmp_path_factory.mktemp("pages")
    small = write_sound(folder / "small", variant_of(topology="tp2-cp2-cfg2").config)
    made = {"small": page_on(small), "full": page_on(full_set(folder / "full"))}
    return {name: written(folder / f"{name}.html", html) for name, html in made.items()}


def written(file: Path, html: str) -> str:
    """The address of a page that is written into a file."""
    file.write_text(html, encoding="utf-8")
    return file.as_uri()


def colors(png: bytes) -> int:
    """Colours that cover more than letters' edges do."""
    with Image.open(io.BytesIO(png)) as picture:
        counted = picture.convert("RGB").getcolors(1 << 24)
    return len([count for count, _ in counted if count >= OF_PX])


UNSEEN_DRAWINGS = """[...document.querySelectorAll("svg")].filter(svg => {
  const box = svg.getBoundingClientRect()
  return box.width < 10 || box.height < 10
}).length"""
TINY_TEXTS = f"""[...document.querySelectorAll("svg text")].filter(
  text => text.getBoundingClientRect().height < {LEAST_TEXT_PX}).length"""
TEXTS_BEYOND_THEIR_CELL = """[...document.querySelectorAll("g.cell")].filter(cell => {
  const room = cell.querySelector("rect").getBoundingClientRect()
  return [...cell.querySelectorAll("text")].some(text => {
    const box = text.getBoundingClientRect()
    return box.left < room.left || box.right > room.right || box.bottom > room.bottom + 1
  })
}).length"""
UNFOLD = "document.querySelectorAll('summary').forEach(summary => summary.click())"
FOLDED = "document.querySelectorAll('details:not([open])').length"
WIDTH = "document.documentElement.scrollWidth"


@pytest.mark.parametrize("name", ["small", "full"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_quiet_asks_for_nothing_and_fits_the_window(browser, pages, name, width):
    seen = browser.open(pages[name], width=width)
    assert seen.said == []
    assert seen.requests == [pages[name]]
    assert browser.evaluate(WIDTH) == width
    assert browser.evaluate(FOLDED) > 0
    browser.evaluate(UNFOLD)
    assert browser.evaluate(FOLDED) == 0
    assert browser.evaluate(WIDTH) == width, "with all that is folded up"


@pytest.mark.parametrize("width", [1280, 390])
def test_every_drawing_can_be_seen_and_read(browser, pages, width):
    browser.open(pages["full"], width=width)
    assert browser.evaluate("document.querySelectorAll('svg').length") > 12
    assert browser.evaluate("document.querySelectorAll('svg text').length") > 500
    assert browser.evaluate(UNSEEN_DRAWINGS) == 0
    assert browser.evaluate(TINY_TEXTS) == 0
    assert browser.evaluate(TEXTS_BEYOND_THEIR_CELL) == 0


def test_page_follows_the_reader_s_light_or_dark(browser, pages):
    corners = {}
    for scheme in ("light", "dark"):
        browser.open(pages["small"], scheme=scheme)
        png = browser.screenshot()
        with Image.open(io.BytesIO(png)) as picture:
            assert picture.width == 1280
            assert picture.height > 1500, "the whole page"
            corners[scheme] = sum(picture.convert("RGB").getpixel((2, 2)))
        assert colors(png) >= LEAST_COLORS
    assert corners["dark"] < 150 < 700 < corners["light"]


def test_browser_notices_what_a_page_must_not_do(browser, tmp_path):
    """The tests above could fail."""
    address = written(tmp_path / "faulty.html", FAULTY)
    seen = browser.open(address, width=390)
    assert seen.requests == [address, "http://127.0.0.1:9/missing.png"]
    said = "\n".join(seen.said)
    assert "complaint" in said
    assert "thrown" in said
    assert "ERR_CONNECTION_REFUSED" in said or "ERR_UNSAFE_PORT" in said
    assert browser.evaluate(WIDTH) > 1990
    assert browser.evaluate(UNSEEN_DRAWINGS) == 1
    assert colors(browser.screenshot(whole=False)) < LEAST_COLORS


def test_page_s_policy_keeps_out_what_a_bundle_might_get_past_the_templates(browser, pages):
    """A second lock: no script and nothing from elsewhere even where markup were to come in."""
    html = Path(pages["small"].removeprefix("file://")).read_text(encoding="utf-8")
    planted = "<script>document.title = 'run'</script><img src='http://127.0.0.1:9/x.png'>"
    file = Path(pages["small"].removeprefix("file://")).with_name("planted.html")
    seen = browser.open(written(file, html.replace("<main>", f"<main>{planted}")))
    assert browser.evaluate("document.title") == "small, a wanc bundle"
    assert seen.blocked == ["csp"]
    assert sum("Content Security Policy" in said for said in seen.said) == 2


def test_closing_leaves_neither_processes_nor_a_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Browser(chromium()) as started:
        (folder,) = tmp_path.iterdir()
        assert started.evaluate("1 + 1") == 2
        assert processes_of(folder)
    assert not folder.exists()
    until = time.monotonic() + 5
    while processes_of(folder) and time.monotonic() < until:
        time.sleep(0.02)  # those that watch for crashes end by themselves
    assert not processes_of(folder)


def processes_of(folder: Path) -> list[str]:
    """Processes that have a folder on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in line:
            found.append(process.name)
    return found
