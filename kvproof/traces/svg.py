"""A trace as a sequence diagram in SVG that needs nothing else: a lane a rank, readable in light and in dark."""

from __future__ import annotations

from xml.etree import ElementTree

from kvproof.models.trace import Trace
from kvproof.traces.lanes import Collective, Lanes, lanes
from kvproof.traces.text import printable

ROW = 30
"""Pixels from one action to the next."""
LETTER = 7.3
"""Pixels that a letter takes at most, in a monospaced face of 12 pixels."""
_LABEL, _CHANGED, _GUTTER = 34, 60, 24
"""Letters after which an action's label, what it changed, and a collective's name are cut."""
_TOP = 66
_STYLE = """
.kv-page { fill: #ffffff } .kv text, text.kv { fill: #1f2328 }
.kv { font: 12px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }
.kv .kv-quiet { fill: #59636e } .kv .kv-head { font-weight: bold }
.kv-lane { stroke: #b1b9c2 } .kv-mark { fill: #0969da } .kv-wait { fill: #bf8700 } .kv-stuck { fill: #cf222e }
.kv-band { fill: #0969da; fill-opacity: .08; stroke: #0969da; stroke-opacity: .5; stroke-dasharray: 3 3 }
.kv-meet { stroke: #0969da; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
 .kv-page { fill: #0d1117 } .kv text, text.kv { fill: #e6edf3 } .kv .kv-quiet { fill: #9198a1 }
 .kv-lane { stroke: #545d68 } .kv-mark { fill: #58a6ff } .kv-wait { fill: #d29922 } .kv-stuck { fill: #ff7b72 }
 .kv-band { fill: #58a6ff; fill-opacity: .12; stroke: #58a6ff } .kv-meet { stroke: #58a6ff }
}
"""


def diagram(trace: Trace) -> str:
    """Return the diagram as a document of its own."""
    drawn = lanes(trace)
    gutter = 16 + LETTER * max([4, *(min(len(_waiting(each, drawn)), _GUTTER) for each in drawn.collectives)])
    width = [32 + LETTER * max(len(name), *(min(len(mark.label), _LABEL) for mark in drawn.marks if mark.lane == lane),
                               0) for lane, name in enumerate(drawn.names)]
    left = [gutter + 12 + sum(width[:lane]) for lane in range(len(width))]
    changed = gutter + 24 + sum(width)
    size = (changed + 16 + LETTER * max([12, *(min(len(mark.changed), _CHANGED) for mark in drawn.marks)]),
            _TOP + ROW * (len(drawn.marks) + 1) + 8)
    svg = ElementTree.Element("svg", {
        "xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {size[0]:.0f} {size[1]:.0f}", "class": "kv",
        "width": f"{size[0]:.0f}", "height": f"{size[1]:.0f}", "role": "img",
    })
    ElementTree.SubElement(svg, "title").text = printable(trace.subject)
    ElementTree.SubElement(svg, "style").text = _STYLE
    _add(svg, "rect", "kv-page", x=0, y=0, width=size[0], height=size[1])
    _text(svg, 12, 22, trace.subject, int((size[0] - 24) / LETTER), "kv-quiet")
    end = _TOP + ROW * len(drawn.marks) + 4
    for each in drawn.collectives:
        _band(svg, each, drawn, gutter, changed - 8, end)
    for lane, name in enumerate(drawn.names):
        _add(svg, "line", "kv-lane", x1=left[lane] + 6, x2=left[lane] + 6, y1=_TOP - 12, y2=end)
        _text(svg, left[lane], _TOP - 20, name, _LABEL, "kv-head")
    _text(svg, changed, _TOP - 20, "what changed", _CHANGED, "kv-head")
    for each in drawn.collectives:
        for lane, number in each.entered.items():
            stuck = lane not in each.left
            bottom = end if stuck else _at(each.left[lane])
            _add(svg, "rect", "kv-stuck" if stuck else "kv-wait", x=left[lane] + 3, y=_at(number), width=6,
                 height=bottom - _at(number), rx=2)
    for number, mark in enumerate(drawn.marks):
        _add(svg, "circle", "kv-mark", cx=left[mark.lane] + 6, cy=_at(number), r=5)
        _text(svg, left[mark.lane] + 18, _at(number) + 4, mark.label, _LABEL)
        _text(svg, changed, _at(number) + 4, mark.changed, _CHANGED, "kv-quiet")
    return ElementTree.tostring(svg, encoding="unicode") + "\n"


def _at(number: int) -> float:
    """Return how far down an action is."""
    return _TOP + ROW * number + ROW / 2


def _waiting(each: Collective, drawn: Lanes) -> str:
    """Return the name of a collective, with how many stay in it."""
    waiting = len(each.entered) - len(each.left)
    return f"{each.name}{f', {waiting} in it' if waiting else ''}"


def _band(svg: ElementTree.Element, each: Collective, drawn: Lanes, left: float, right: float, end: float) -> None:
    """Draw a collective across all lanes, from its first entry to where the last one leaves it, if all do."""
    first = min(each.entered.values())
    over = len(each.left) == len(each.entered)
    bottom = _at(max(each.left.values())) + ROW / 2 - 3 if over else end
    _add(svg, "rect", "kv-band", x=left, y=_at(first) - ROW / 2 + 3, width=right - left,
         height=bottom - _at(first) + ROW / 2 - 3, rx=4)
    if each.left:
        meet = _at(min(each.left.values())) - ROW / 2
        _add(svg, "line", "kv-meet", x1=left, x2=right, y1=meet, y2=meet)
    _text(svg, 12, _at(first) + 4, _waiting(each, drawn), _GUTTER)


def _add(svg: ElementTree.Element, tag: str, style: str, **numbers: float) -> None:
    ElementTree.SubElement(svg, tag, {"class": style, **{name: f"{value:g}" for name, value in numbers.items()}})


def _text(svg: ElementTree.Element, x: float, y: float, said: str, letters: int, style: str = "") -> None:
    """Write a text, cut to so many letters; a pointer that rests on it shows the whole."""
    whole = printable(said)
    text = ElementTree.SubElement(svg, "text", {"x": f"{x:g}", "y": f"{y:g}", **({"class": style} if style else {})})
    text.text = whole
    if len(whole) > letters:
        text.text = f"{whole[: letters - 1]}…"
        ElementTree.SubElement(text, "title").text = whole
