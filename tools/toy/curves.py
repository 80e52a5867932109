"""Draws loss curves. Knows no networks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def save_curve(losses: Sequence[float], path: Path, *, title: str) -> None:
    """A PNG of the loss of each step, and of its running mean, on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss", yscale="log", title=title)
    window = max(1, min(200, len(losses) // 10))
    mean = np.convolve(losses, np.ones(window) / window, mode="valid")
    axes.plot(losses, linewidth=0.4, alpha=0.4, color="tab:blue")
    axes.plot(range(window - 1, len(losses)), mean, color="tab:blue")
    figure.savefig(path, dpi=100)
