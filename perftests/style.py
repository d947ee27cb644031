"""How pictures of perf tests look: colours, heading, axes, labels on curves, units."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # Files only: no display is needed.

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

__all__ = [
    "COLOURS", "GREY", "MARKERS", "bandwidth_axis", "end_labels", "frame", "log_y", "number_text", "picture", "rate_text", "size_axis",
    "size_text",
]  # fmt: skip

#: Okabe and Ito's colours without yellow: distinguishable in every kind of colour vision and in grey with the markers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX"

#: Of what is said beside the data.
GREY = "#444444"

#: Points of 1/72 inch: the text beside the data, and a line of it.
_SMALL, _LINE = 8.5, 12.0


@contextlib.contextmanager
def picture(path: str, width: float, height: float, headline: str, details: str) -> Iterator[Any]:
    """Yield an empty figure under a heading; when the block ends, it is laid out and written.

    Args:
        path: PNG to write.
        width, height: inches.
        headline: what is seen, in a line.
        details: what ran where, in lines.
    """
    figure = pyplot.figure(figsize=(width, height), dpi=150)
    try:
        top, left = 72 * height, 8 / (72 * width)
        figure.text(left, 1 - 8 / top, headline, fontsize=12, fontweight="bold", va="top")
        figure.text(left, 1 - 27 / top, details, fontsize=_SMALL, color=GREY, va="top", linespacing=1.3)
        yield figure
        figure.tight_layout(rect=(0, 0, 1, 1 - (30 + _LINE * (1 + details.count("\n"))) / top))
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def frame(axes: Any) -> None:
    """Give the axes a grid behind the data, and no border above and at the right."""
    axes.grid(which="major", color="#cccccc", linewidth=0.7)
    axes.grid(which="minor", axis="y", color="#eeeeee", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def size_axis(axes: Any, sizes: Sequence[int], ticks: int = 13) -> None:
    """Make x a logarithmic axis of message sizes, with so many ticks at most; without any size there is nothing to scale."""
    axes.set_xlabel("message size")
    if sizes:
        axes.set_xscale("log", base=2)
        doublings = math.log2(max(sizes) / min(sizes))
        axes.xaxis.set_major_locator(LogLocator(base=2 ** max(1, math.ceil(doublings / ticks)), numticks=99))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(size)))


def log_y(axes: Any, values: Sequence[float]) -> None:
    """Make y logarithmic over whole decades; without any value there is nothing to scale."""
    if values:
        axes.set_yscale("log")
        axes.set_ylim(10 ** math.floor(math.log10(min(values))), 10 ** (math.floor(math.log10(max(values))) + 1))
        axes.yaxis.set_minor_formatter(NullFormatter())


def bandwidth_axis(axes: Any) -> None:
    """Make y an axis of GB/s."""
    axes.set_ylabel("bandwidth (1 GB = 10⁹ bytes)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: rate_text(rate)))


def end_labels(axes: Any, labels: Sequence[tuple[str, float, float, str]]) -> None:
    """Write labels at the right of the ends of curves, one above the other where the ends are close.

    Args:
        axes: with its curves and scales.
        labels: text, x and y of the curve's end, colour.
    """
    points = 72 / axes.figure.dpi
    stacks: list[list[Any]] = []  # centre and height of labels that stand one above the other, and the labels
    for label in sorted(labels, key=lambda label: label[2]):
        centre, height, members = axes.transData.transform(label[1:3])[1] * points, _label_height(label[0]), [label]
        while stacks and centre - height / 2 < stacks[-1][0] + stacks[-1][1] / 2:
            below, below_height, below_members = stacks.pop()
            centre = (below * len(below_members) + centre * len(members)) / len(below_members + members)
            height, members = below_height + height, below_members + members
        stacks.append([centre, height, members])
    for centre, height, members in stacks:
        bottom = centre - height / 2
        for text, x, y, colour in members:
            offset = bottom + _label_height(text) / 2 - axes.transData.transform((x, y))[1] * points
            bottom += _label_height(text)
            beside = {"xytext": (7, offset), "textcoords": "offset points", "annotation_clip": False}
            axes.annotate(text, (x, y), **beside, color=colour, fontsize=_SMALL, fontweight="bold", va="center")


def _label_height(text: str) -> float:
    return _LINE * (1.2 + text.count("\n"))


def size_text(size: float) -> str:
    """Return a size with its binary unit: 65536 is 64 KiB."""
    for unit, suffix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {suffix}"
    return f"{size:g} B"


def rate_text(gbps: float) -> str:
    """Return a bandwidth, given in GB/s, with the unit that suits it."""
    return number_text(gbps * 1e9, "B/s")


def number_text(number: float, unit: str) -> str:
    """Return three digits of a number with a decimal prefix before its unit: 2.5e9 B/s is 2.5 GB/s."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if float(f"{number:.3g}") >= scale:
            return f"{number / scale:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"
