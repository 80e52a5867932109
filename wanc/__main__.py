"""``python -m wanc``."""

from wanc.cli import main

main()
