"""What tests ask of a figure: the words on it, its colours, that it renders and that nothing is cut off."""

from __future__ import annotations

import io
from xml.etree import ElementTree

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from structinf.plot.style import as_percent


def texts(figure) -> list[str]:
    """All words on a figure, titles included."""
    found = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        found += [text.get_text() for text in axes.texts]
        found += [axes.get_title(), *(label.get_text() for label in axes.get_xticklabels() + axes.get_yticklabels())]
    return [text for text in found if text]


def words_of(figure) -> list[str]:
    """Those of its parts too, but for what their axes say."""
    return texts(figure) + [text.get_text() for part in figure.subfigs for text in part.texts if text.get_text()]


def arrows(figure) -> list[FancyArrowPatch]:
    """In the order of the edges."""
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


def render(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer)
    return buffer.getvalue()


def words_of_svg(file: bytes) -> list[str]:
    """All that is written in it as text, and not as outlines of letters."""
    elements = ElementTree.fromstring(file).iter("{http://www.w3.org/2000/svg}text")
    return [element.text for element in elements if element.text]


def percentages(solution) -> list[str]:
    weights = solution.weights[solution.weights > 0].sort(descending=True).values
    return [as_percent(w) for w in weights.tolist()]


def shown_percentages(figure) -> list[str]:
    return [text for text in texts(figure) if text.endswith("%")]


def decimals(values) -> list[str]:
    """The probabilities that are shown, as they are shown, sorted."""
    shown = [v for v in values.flatten().tolist() if v > 0.005]
    return sorted("1" if v > 0.995 else f"{v:.2f}".removeprefix("0") for v in shown)


def shown_decimals(figure) -> list[str]:
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    return sorted(text for text in found if text == "1" or text.startswith("."))


def colours(artists) -> list[str]:
    return [to_hex(a.get_edgecolor() if hasattr(a, "get_edgecolor") else a.get_color()) for a in artists]


def cut_off(figure) -> list[str]:
    """The texts that do not lie on the figure."""
    FigureCanvasAgg(figure).draw()
    everything = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    everything += [axes.title for axes in figure.axes]
    shown = [axes for axes in figure.axes if axes.axison]
    everything += [label for axes in shown for label in axes.get_xticklabels() + axes.get_yticklabels()]
    left, low, right, high = figure.bbox.extents
    found = []
    for text in (text for text in everything if text.get_text() and text.get_visible()):
        box = text.get_window_extent()
        if box.x0 < left or box.y0 < low or box.x1 > right or box.y1 > high:
            found.append(text.get_text())
    return found
