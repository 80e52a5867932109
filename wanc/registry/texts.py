"""Texts of others, made fit to be shown. Knows nothing of what they say."""

MOST_CHARACTERS = 300


def printable(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text on one line, without what a terminal would obey, and not longer than so much."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text[: 4 * most].split()))
    return shown if len(shown) <= most else shown[:most] + "..."
