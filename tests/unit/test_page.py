"""What a page on a bundle says and draws, and the command that writes it."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pages import (
    Element,
    captioned,
    config_of,
    drawings,
    full_set,
    page_on,
    read,
    rows,
    section,
)
from tests.planned import I2V, planned
from tests.sound import with_programs, write_sound
from wanc.bundle.reports import attach_report
from wanc.bundle.sharing import blob_uses
from wanc.bundle.store import open_bundle
from wanc.cli import main
from wanc.page import page as pages
from wanc.page.chips import CELL_HEIGHT, CELL_WIDTH, CHIP_WIDTH
from wanc.page.colors import ordinal
from wanc.page.page import VariantView, page_of
from wanc.plan.fabric import chip_of
from wanc.spec.target import TRN2_FABRIC
from wanc.units import seconds, size, spans


@pytest.fixture(scope="module")
def full(tmp_path_factory) -> Path:
    return full_set(tmp_path_factory.mktemp("full") / "full-set")


@pytest.fixture(scope="module")
def full_html(full) -> str:
    return page_on(full)


@pytest.fixture(scope="module")
def views(full) -> tuple[VariantView, ...]:
    """What that page shows of its variants."""
    return page_of(open_bundle(full)).variants


@pytest.fixture
def small(tmp_path, made) -> Path:
    return write_sound(tmp_path / "small", made("432x240x5", "tp2-cp2-cfg2").config)


def figure(html: str, number: int, head: str) -> Element:
    """A figure of a variant by its heading."""
    found = section(html, number).all("figure")
    return next(each for each in found if each.one("figcaption").one("b").text == head)


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, "0").rstrip("%"))


# --- the document ---------------------------------------------------------------------------------


def test_page_is_one_document_without_script_or_anything_from_outside(full_html):
    assert full_html.startswith('<!doctype html>\n<html lang="en">')
    document = read(full_html)
    tags = {element.tag for element in document.below()}
    assert not tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    for element in document.below():
        assert not [name for name in element.attributes if name.startswith("on") or name == "src"]
        assert element.attributes.get("href", "#").startswith("#")
    style = document.one("style").text
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = (each for each in document.all("meta") if "http-equiv" in each.attributes)
    assert policy.attributes["http-equiv"] == "Content-Security-Policy"
    wanted = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert policy.attributes["content"] == wanted
    assert "http" not in full_html.replace("http-equiv", "")


def test_links_lead_somewhere_and_headings_are_in_order(full_html):
    document = read(full_html)
    ids = [e.attributes["id"] for e in document.below() if "id" in e.attributes]
    assert len(ids) == len({*ids})
    links = {element.attributes["href"][1:] for element in document.all("a")}
    assert {f"variant-{n}" for n in (1, 2, 3, 4)} <= links <= {*ids}
    levels = [int(e.tag[1]) for e in document.below() if e.tag in ("h1", "h2", "h3")]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert len(document.one("nav").all("a")) == 4
    for table in document.all("table"):
        assert table.one("caption").text
        assert table.all("th")


def test_same_bundle_gives_the_same_bytes_wherever_it_lies(tmp_path, made):
    config = made(topology="tp2").config
    one, two = (write_sound(tmp_path / where / "b", config) for where in ("here", "there/far"))
    assert page_on(one) == page_on(two)
    assert page_on(one, 1) == page_on(one), "the only variant is all of it"


# --- values ---------------------------------------------------------------------------------------


def test_bundle_s_identity_and_totals(full, full_html):
    bundle, header = open_bundle(full), read(full_html).one("header")
    assert header.one("h1").text == "full-set"
    assert header.one("code").text == bundle.digest
    totals = dict(
        zip([e.text for e in header.all("dt")], [e.text for e in header.all("dd")], strict=True)
    )
    sharing = page_of(bundle).sharing
    assert totals["format"] == "4"
    assert totals["variants"] == "4"
    assert totals["programs"] == str(sharing.programs)
    assert totals["uses of them"] == f"{sharing.uses:,}"
    assert totals["size"] == size(sharing.bytes)


def test_every_variant_says_what_it_is(full, full_html):
    for n, entry in enumerate(open_bundle(full).variants, start=1):
        config, found = entry.config, section(full_html, n)
        facts = dict(
            zip([e.text for e in found.all("dt")], [e.text for e in found.all("dd")], strict=True)
        )
        assert config.variant.texts().items() <= facts.items()
        assert facts["model"] == "wan2.2-t2v-a14b"
        assert facts["stage"] == "complete"
        assert facts["ranks"] == "64"
        assert facts["tokens"].startswith(f"{config.tokens.tokens}, ")
        assert entry.manifest.digest in found.text


def test_programs_have_digests_sizes_and_uses(full, full_html):
    configs = [entry.config for entry in open_bundle(full).variants]
    uses = blob_uses(configs)
    for n, config in enumerate(configs, start=1):
        found = section(full_html, n)
        told = rows(captioned(found, "Programs"))[1:]
        for record, row in zip(config.programs, told, strict=True):
            assert row[0] == record.program.name
            for blob, cell in zip(record.blobs, row[4:6], strict=True):
                assert cell.startswith(f"{blob.digest[7:19]} {size(blob.size_bytes)} serves ")
                assert f"serves {uses[blob.digest].uses:,} use" in cell
                assert blob.digest in found.text  # whole, with the provenance


def test_blobs_count_uses_over_variants(made):
    """Eight ranks of one variant and one of another; only the VAE's programs are the same."""
    configs = [with_programs(made(topology=t).config)[0] for t in ("tp2-cp2-cfg2", "tp1")]
    uses = blob_uses(configs)
    by_name = {r.program.name: uses[r.stablehlo.digest] for r in configs[0].programs}
    assert by_name["vae_decode_first"].by_variant == {1: 1, 2: 1}
    assert by_name["text_encoder"].by_variant == {1: 8}
    assert by_name["dit_embed"].uses == 16
    assert by_name["dit_embed"].size_bytes == configs[0].program("dit_embed").stablehlo.size_bytes


def test_what_variants_share_is_a_table_of_uses(full, full_html):
    page = page_of(open_bundle(full))
    table = read(full_html).one("table", class_="matrix")
    assert len(rows(table)) == 1 + len(page.shared)
    for row, shared in zip(rows(table)[1:], page.shared, strict=True):
        served = [shared.blob.by_variant.get(n) for n in (1, 2, 3, 4)]
        assert row[:2] == [shared.names[0], shared.blob.digest[7:19]]
        assert row[2:6] == [f"{n:,}" if n else "·" for n in served]
        assert row[6] == f"{shared.blob.uses:,}"
    assert any(len(shared.blob.by_variant) == 4 for shared in page.shared)


def test_memory_is_that_of_the_plan_with_its_limit(views, full_html):
    for n, view in enumerate(views, start=1):
        plan, shown = view.predicted.plan, figure(full_html, n, "Memory of a rank")
        told = rows(shown.one("table"))
        parts = [(part.name, size(part.bytes)) for part in plan.memory]
        assert [tuple(row[:2]) for row in told[1 : len(parts) + 1]] == parts
        assert told[len(parts) + 1][:2] == ["sum", size(plan.memory_bytes)]
        assert sum(part.value for part in view.memory.segments) == plan.memory_bytes
        limited = plan.hbm_bytes is not None
        assert limited == (view.config.variant.target != "cpu")
        assert len(shown.all("line", class_="limit")) == limited
        if limited:
            assert told[-1][:2] == ["HBM that can be filled", size(plan.hbm_bytes)]


def test_bars_are_as_long_as_what_they_stand_for(views, full_html):
    most = max(max(view.memory.bytes, view.memory.limit_bytes or 0) for view in views)
    bars = drawings(full_html, "bar")
    for bar, view in zip(bars[: len(views)], views, strict=True):
        drawn = [rect for rect in bar.iter("rect") if rect.get("class") != "track"]
        at = 0.0
        for rect, part in zip(drawn, view.memory.segments, strict=True):
            assert rect.get("class") == part.tone
            assert number(rect, "x") == pytest.approx(at, abs=0.01)
            assert number(rect, "width") == pytest.approx(100 * part.value / most, abs=0.001)
            at += number(rect, "width")
    tones = {part.name: part.tone for view in views for part in view.memory.segments}
    assert len({*tones.values()}) == len(tones), "two parts of one colour"


def test_tones_have_colours(full_html):
    style = read(full_html).one("style").text
    tones = {rect.get("class") for bar in drawings(full_html, "bar") for rect in bar.iter("rect")}
    for tone in {word for classes in tones for word in classes.split()} - {"track"}:
        assert f".{tone}" in style


def test_times_are_predicted_for_accelerators_alone(views, full_html):
    for n, view in enumerate(views, start=1):
        cost, shown = view.predicted.plan.cost, figure(full_html, n, "Predicted time of a video")
        if view.config.variant.target == "cpu":
            assert cost is None
            assert "No prediction is made for cpu" in shown.text
            continue
        told = {row[0]: row for row in rows(shown.one("table"))}
        assert told["a video"][1] == seconds(cost.kernels.seconds)
        assert told["a video"][3] == seconds(cost.stablehlo.seconds)
        assert told["denoising, 40 steps"][1] == seconds(cost.kernels.denoise.seconds)
        assert told["denoising, 40 steps"][2].startswith("compute ")
        parts = view.times.stablehlo
        assert sum(part.value for part in parts) == pytest.approx(cost.stablehlo.seconds)
        assert parts[-1].start_percent + parts[-1].width_percent <= 100.01


def test_schedule_has_stages_calls_feeds_and_results(full, full_html):
    config = open_bundle(full).variants[0].config
    table = captioned(section(full_html, 1), "Calls of a stage")
    told = {row[0]: row for row in rows(table)[1:]}
    assert [*told] == [stage.name for stage in config.schedule.stages]
    for stage in config.schedule.stages:
        assert told[stage.name][1] == str(len(stage.calls))
    step = told["step.high_noise"]
    assert "dit_blocks × 10 transformer, layers 0-39, branches 0-1" in step[2]
    assert step[3].startswith("tokens, timestep, rope_cos")
    assert step[4] == "noise of rank 0 and 63 more"


def test_provenance_tells_common_entries_once(tmp_path, made):
    config = made().config
    keys = [
        {**record.compile_key, "compiler": "2.21+x", "flags": ["-O1", name]}
        for record in config.programs
        for name in [record.program.name]
    ]
    programs = tuple(replace(r, compile_key=k) for r, k in zip(config.programs, keys, strict=True))
    path = write_sound(tmp_path / "b", replace(config, programs=programs, requires={"isa": "v9"}))
    told = [row for t in section(page_on(path), 1).all("table") for row in rows(t)]
    assert told.count(["compiler", "2.21+x"]) == 1
    assert all(["flags", f"-O1 {record.program.name}"] in told for record in programs)
    assert ["isa", "v9"] in told


def test_reports_are_named_with_what_they_cover(small):
    records = open_bundle(small).variants[0].config.programs
    report = attach_report(small, b"{}", (records[3].stablehlo.digest, records[0].stablehlo.digest))
    told = read(page_on(small)).one("section", id="reports").text
    assert report in told
    assert f"text_encoder {records[0].stablehlo.digest[7:19]}" in told
    assert f"dit_blocks {records[3].stablehlo.digest[7:19]}" in told
    assert "dit_head" not in told


def test_only_so_many_variants_are_shown(full, monkeypatch):
    monkeypatch.setattr(pages, "MOST_VARIANTS", 2)
    document = read(page_on(full))
    shown = [e for e in document.all("section") if e.attributes["id"].startswith("variant-")]
    assert len(shown) == 2
    assert "The first 2 variants are shown" in document.one("header").text


# --- drawings -------------------------------------------------------------------------------------


def cells(svg: ElementTree.Element) -> dict[int, ElementTree.Element]:
    """Groups of the rank map by rank."""
    groups = [group for group in svg.iter("g") if group.get("class") == "cell"]
    found = {int(group.findall("text")[0].text): group for group in groups}
    assert len(found) == len(groups), "a rank stands twice"
    return found


def test_every_rank_lies_on_its_chip(views, full_html):
    maps = drawings(full_html, "drawing")[::2]
    for svg, view in zip(maps, views, strict=True):
        mesh, drawn = view.config.mesh, cells(svg)
        assert sorted(drawn) == list(mesh.ranks)
        for rank, group in drawn.items():
            place, core = mesh.coordinates[rank], mesh.cores[rank]
            assert group.findall("text")[1].text == f"({place.cfg},{place.cp},{place.tp})"
            assert group.find("title").text.startswith(f"rank {rank}, core {core}: ")
            assert bool(group.findall("path")) == (place.cfg == 1)
        fills = {(mesh.coordinates[r].cp, g.find("rect").get("fill")) for r, g in drawn.items()}
        assert len(fills) == len({fill for _, fill in fills}) == mesh.topology.cp


def test_cores_stand_in_their_chips_as_the_fabric_has_them(views, full_html):
    view, svg = views[2], drawings(full_html, "drawing")[4]
    assert view.config.variant.placement == "trn2-torus"
    chips = [rect for rect in svg.iter("rect") if rect.get("class") == "chip"]
    assert len(chips) == 16
    columns = sorted({number(chip, "x") for chip in chips})
    lines = sorted({number(chip, "y") for chip in chips})
    assert (len(lines), len(columns)) == (4, 4)
    for rank, group in cells(svg).items():
        row, column = chip_of(TRN2_FABRIC, view.config.mesh.cores[rank])
        rect = group.find("rect")
        x, y = number(rect, "x"), number(rect, "y")
        assert columns[column] < x
        assert x + CELL_WIDTH < columns[column] + CHIP_WIDTH
        assert lines[row] < y
        assert y + CELL_HEIGHT < lines[row] + number(chips[0], "height")


def test_links_of_the_ring_are_those_that_cp_goes_over(full, full_html):
    """Two branches, each a closed path over eight of the sixteen chips."""
    svg = drawings(full_html, "drawing")[4]
    links = [line for line in svg.iter("line") if "link" in line.get("class", "")]
    assert len(links) == 2 * 16 + 2 * 4, "32 links, of which 8 go around and have two ends"
    assert sum(line.get("class") == "link ring" for line in links) == 2 * 8


def test_chips_without_ranks_are_drawn_idle_and_gathers_have_no_ring(tmp_path):
    """Sixteen ranks are four chips of the torus; attention that gathers passes nothing on."""
    plan = planned("832x480x81", "tp4-cp4", options={"attention": "allgather"})
    svg = drawings(page_on(write_sound(tmp_path / "b", config_of(plan))), "drawing")[0]
    drawn = [rect.get("class") for rect in svg.iter("rect") if "chip" in rect.get("class", "")]
    assert (drawn.count("chip"), drawn.count("chip idle")) == (4, 12)
    assert {line.get("class") for line in svg.iter("line")} == {"link"}


def test_images_are_a_stage_of_their_own(tmp_path):
    plan = planned("832x480x81", "tp4-cp8", model=I2V)
    path = write_sound(tmp_path / "b", config_of(plan))
    told = rows(captioned(section(page_on(path), 1), "Time of each stage"))
    found = {row[0]: row[1] for row in told}
    assert found["image encoding"] == seconds(plan.cost.kernels.image.seconds)


def test_a_switch_has_no_links_and_ranks_without_fabric_no_chips(full_html):
    trn3, cpu = drawings(full_html, "drawing")[2], drawings(full_html, "drawing")[0]
    assert not [*trn3.iter("line"), *cpu.iter("line")]
    assert len([r for r in trn3.iter("rect") if "chip" in r.get("class", "")]) == 16
    assert not [r for r in cpu.iter("rect") if "chip" in r.get("class", "")]


def test_tiles_lie_over_the_picture_as_planned(views, full_html):
    maps = drawings(full_html, "drawing")[1::2]
    for svg, view in zip(maps, views, strict=True):
        shape, plan = view.config.variant.shape, view.config.tiles
        picture, *tiles = svg.iter("rect")
        assert (number(picture, "width"), number(picture, "height")) == (
            shape.width_px,
            shape.height_px,
        )
        seen = [tuple(number(t, k) / 8 for k in ("y", "x", "height", "width")) for t in tiles]
        assert seen == [(t.row, t.column, t.rows, t.columns) for t in plan.tiles]
        words = [text.text for text in svg.iter("text")]
        assert words[::2] == [str(n + 1) for n in range(len(plan.tiles))]
        assert words[1::2] == [f"rank {rank}" for rank in plan.ranks]


def test_labels_of_tiles_have_room(views):
    for view in views:
        boxes, label = view.tiles.tiles, view.tiles.label_px
        middles = [(b.x + b.width / 2, b.y + b.height / 2) for b in boxes]
        for i, (x, y) in enumerate(middles):
            for other_x, other_y in middles[:i]:
                far = abs(x - other_x) >= 5 * label or abs(y - other_y) >= 2.5 * label
                assert far, "labels overlap"
        assert label >= 9


def test_drawings_have_names(full_html):
    for svg in (*drawings(full_html, "drawing"), *drawings(full_html, "bar")):
        assert svg.get("role") == "img"
        assert svg.find("title").text.strip()


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 64])
def test_text_is_legible_on_every_colour(count):
    def light(color: str) -> float:
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    paints = [ordinal(i, count) for i in range(count)]
    for paint in paints:
        dark, bright = sorted((light(paint.fill), light(paint.ink)))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5
    lights = [light(paint.fill) for paint in paints]
    assert lights == sorted(lights)
    assert len({paint.fill for paint in paints}) == count


# --- the command ----------------------------------------------------------------------------------


def run(capsys, *arguments) -> tuple[int, str]:
    """Exit code and stderr of wanc inspect."""
    with pytest.raises(SystemExit) as end:
        main(["inspect", *map(str, arguments)])
    return end.value.code or 0, capsys.readouterr().err


def test_command_writes_a_page_and_says_so(full, tmp_path, capsys):
    file = tmp_path / "p.html"
    code, told = run(capsys, full, "--html", file)
    assert code == 0
    assert told == f"{file}: a page of {size(file.stat().st_size)} on {open_bundle(full).digest}\n"
    assert file.read_text() == page_on(full)


def test_command_writes_one_variant(full, tmp_path, capsys):
    file = tmp_path / "p.html"
    assert run(capsys, full, 2, "--html", file)[0] == 0
    document = read(file.read_text())
    assert [e.attributes["id"] for e in document.all("section")] == ["variant-2", "reports"]
    assert not document.all("nav")
    assert "Variant 2 of 4 is shown" in document.one("header").text


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--json"], "leave out --json"),
        (["1", "dit_blocks"], "leave out the program dit_blocks"),
        (["9"], "variant 9: the bundle has 1 to 1"),
    ],
)
def test_command_refuses_what_has_no_page(small, tmp_path, capsys, arguments, why):
    file = tmp_path / "p.html"
    code, told = run(capsys, small, *arguments, "--html", file)
    assert code == 2
    assert why in told
    assert not file.exists()


def test_a_neff_has_no_page(tmp_path, capsys):
    neff = tmp_path / "x.neff"
    neff.write_bytes(b"x")
    code, told = run(capsys, neff, "--html", tmp_path / "p.html")
    assert code == 2
    assert f"{neff} is a file" in told


def test_a_target_that_takes_no_file_is_an_error(small, tmp_path, capsys):
    code, told = run(capsys, small, "--html", tmp_path / "none" / "p.html")
    assert code == 6
    assert told.startswith(
        f"wanc: cannot write the page {tmp_path / 'none' / 'p.html'}: No such file"
    )
    assert run(capsys, small, "--html", tmp_path)[0] == 6
    assert [file.name for file in tmp_path.iterdir()] == ["small"]


# --- numbers for people ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 3], "0-3"),
        ([1, 2, 4, 7, 8], "1-2, 4, 7-8"),
        ([2, 1], "2, 1"),
    ],
)
def test_spans(numbers, text):
    assert spans(numbers) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 40, "5.0 TiB"),
        (3000 << 40, "3000.0 TiB"),
    ],
)
def test_sizes(count, text):
    assert size(count) == text
    assert size(10**400).endswith(" TiB")
