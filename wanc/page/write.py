"""A page as one file of HTML, which refers to nothing outside itself and has no script.

Every value is escaped, for a bundle may say anything; only templates write markup.
"""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from wanc.bundle.store import Bundle
from wanc.errors import RunError
from wanc.files import write_whole
from wanc.page.page import Page, page_of
from wanc.units import count, seconds, size, spans

_MOST_BITS = 64
"""Of whole numbers: what needs more is damaged, and may be too long to print."""
_TOO_LARGE = "too large to show"


def write_page(bundle: Bundle, file: Path, number: int | None = None) -> int:
    """Write a page on all variants or on one, and return its bytes; raises RunError, BundleError.

    The same bundle gives the same bytes.
    """
    data = html_of(page_of(bundle, number)).encode()
    try:
        write_whole(file, data)
    except OSError as error:
        raise RunError(
            f"cannot write the page {file}: {error.strerror or error}; name a file in a folder "
            "that is there and takes files"
        ) from error
    return len(data)


def html_of(page: Page) -> str:
    """The page's HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"size": size, "seconds": seconds, "spans": spans}
    environment.filters |= {"number": _number, "things": _things}
    return environment.get_template("page.html.j2").render(page=page)


def visible(value: Any) -> Any:
    """A value without what no reader sees: controls, and marks that turn text around."""
    if type(value) is str and not value.isprintable():
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    is_printed = type(value) is not int or value.bit_length() <= _MOST_BITS
    return value if is_printed else _TOO_LARGE


def _number(value: int) -> str:
    """A whole number, its thousands apart."""
    return f"{value:,}" if value.bit_length() <= _MOST_BITS else _TOO_LARGE


def _things(number: int, what: str) -> str:
    """A number of things, as ``1,280 uses``."""
    return f"{_number(number)} {count(number, what).partition(' ')[2]}"
