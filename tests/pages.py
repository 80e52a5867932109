"""Pages on bundles of real plans, and what stands on them, read as a browser would."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from tests.planned import planned
from tests.sound import write_sound
from wanc.bundle.config import config_of
from wanc.bundle.store import open_bundle
from wanc.page.write import write_page

VOID = {"meta"}
"""Elements of a page that have no end."""


@dataclass
class Element:
    """An element, and all that stands in it."""

    tag: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    """Text, its own and that of its children, in order."""

    @property
    def text(self) -> str:
        return " ".join("".join(self.pieces).split())

    def all(self, tag: str, **attributes: str) -> list["Element"]:
        """Those below of a tag, as all("td", id="x"); a class is one word of the attribute."""
        return [
            element
            for element in self.below()
            if element.tag == tag
            and all(
                value in element.attributes.get(name.rstrip("_"), "").split()
                for name, value in attributes.items()
            )
        ]

    def one(self, tag: str, **attributes: str) -> "Element":
        (found,) = self.all(tag, **attributes)
        return found

    def below(self) -> Iterator["Element"]:
        for child in self.children:
            yield child
            yield from child.below()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        ended = self.open.pop()
        assert ended.tag == tag, f"</{tag}> ends <{ended.tag}>"

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.pieces.append(data)


def read(html: str) -> Element:
    """The page as a tree; every element must end where it should."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> does not end"
    return reader.open[0]


def section(html: str, number: int) -> Element:
    """What a page says of one variant."""
    return read(html).one("section", id=f"variant-{number}")


def captioned(found: Element, begin: str) -> Element:
    """The table whose caption begins like this."""
    (table,) = (t for t in found.all("table") if t.one("caption").text.startswith(begin))
    return table


def rows(table: Element) -> list[list[str]]:
    """Cells of a table's rows, heads too."""
    return [
        [cell.text for cell in row.children if cell.tag in ("th", "td")] for row in table.all("tr")
    ]


def drawings(html: str, class_: str) -> list[ElementTree.Element]:
    """The page's SVGs of a class; each must be XML."""
    found = re.findall(r"<svg\b.*?</svg>", html, re.DOTALL)
    return [svg for svg in map(ElementTree.fromstring, found) if svg.get("class") == class_]


def page_on(path: Path, number: int | None = None) -> str:
    """The HTML of a page on a bundle, which must not say where it lies."""
    file = path.with_name("page.html")
    written = write_page(open_bundle(path), file, number)
    data = file.read_bytes()
    assert len(data) == written
    assert str(path.parent) not in data.decode()
    return data.decode()


def full_set(path: Path) -> Path:
    """A bundle of the 14B model for a torus, for a switch, and on CPUs."""
    asked = [
        ("832x480x81", "tp4-cp8-cfg2", "trn2"),
        ("1280x720x81", "tp4-cp8-cfg2", "trn2"),
        ("1280x720x81", "tp4-cp16", "trn3"),
        ("1280x720x81", "tp4-cp8-cfg2", "cpu"),
    ]
    plans = [planned(shape, topology, target=target) for shape, topology, target in asked]
    return write_sound(path, *map(config_of, plans))
