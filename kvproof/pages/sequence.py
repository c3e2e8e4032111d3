"""A wire log as a sequence diagram: a lane a connection, the proxy, the server, and what was done at the proxy."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from kvproof.pages.wire import Row, rows

ROW = 26
"""Pixels from one row to the next."""
LETTER = 7.3
"""Pixels that a letter takes at most, in a monospaced face of 12 pixels."""
LANES = 6
"""Connections with a lane of their own; the others share the last one."""
_LABEL, _DID, _WIDE = 40, 30, 84
_EDGE, _LANE, _TOP = 62, 104, 54


class _Drawing:
    """What is being drawn, and where its lanes are."""

    def __init__(self, found: Sequence[Row]) -> None:
        self.rows = found
        numbers = sorted({row.connection for row in found if row.connection} or {1})
        own = numbers if len(numbers) <= LANES else numbers[: LANES - 1]
        names = [f"connection {number}" for number in own] + (["the others"] if len(numbers) > len(own) else [])
        self.lane = {number: _EDGE + _LANE * min(index, LANES - 1) for index, number in enumerate(numbers)}
        beside = [min(len(row.label), _LABEL) for row in found if row.kind in _BESIDE]
        after = [min(len(row.did), _DID) for row in found if row.did]
        self.text = _EDGE + _LANE * (len(names) - 1) + 16
        self.proxy = self.text + 24 + LETTER * max([22, *beside])
        self.server = self.proxy + 34 + LETTER * max([14, *after])
        self.width = self.server + 44
        self.bottom = _TOP + ROW * len(found) + 8
        self.svg = ElementTree.Element("svg", {
            "viewBox": f"0 0 {self.width:.0f} {self.bottom + 4:.0f}", "class": "seq", "role": "img",
            "width": f"{self.width:.0f}", "height": f"{self.bottom + 4:.0f}",
        })
        ElementTree.SubElement(self.svg, "title").text = "What passed on the wire"
        for name, x in [*zip(names, dict.fromkeys(self.lane.values()), strict=True), ("proxy", self.proxy),
                        ("server", self.server)]:
            self.line("lane", x, 34, x, self.bottom)
            half = LETTER * len(name) / 2 + 6
            self.add("rect", "head", x=x - half, y=10, width=2 * half, height=24, rx=5)
            self.said("head", x, 26, name, 16, "middle")

    def add(self, tag: str, style: str, **values: float | str) -> ElementTree.Element:
        return ElementTree.SubElement(self.svg, tag, {"class": style, **{
            name.replace("_", "-"): value if isinstance(value, str) else f"{value:.5g}"
            for name, value in values.items()}})

    def line(self, style: str, x1: float, y1: float, x2: float, y2: float) -> None:
        self.add("line", style, x1=x1, y1=y1, x2=x2, y2=y2)

    def head(self, style: str, x: float, y: float, to: int) -> None:
        """Draw the head of an arrow that ends here, to the right (1) or to the left (-1)."""
        self.add("polygon", style, points=f"{x:.0f},{y:.0f} {x - 8 * to:.0f},{y - 4:.0f} {x - 8 * to:.0f},{y + 4:.0f}")

    def said(self, style: str, x: float, y: float, text: str, letters: int, anchor: str = "start",
             whole: str = "") -> None:
        element = self.add("text", style, x=x, y=y, **({} if anchor == "start" else {"text_anchor": anchor}))
        element.text = text if len(text) <= letters else f"{text[: letters - 1]}…"
        if whole:
            ElementTree.SubElement(element, "title").text = whole

    def row(self, row: Row, y: float) -> None:
        lane = self.lane.get(row.connection, _EDGE)
        if row.kind in ("note", "call", "next"):
            self.add("rect", f"band {row.kind}", x=8, y=y - 15, width=self.width - 16, height=20, rx=4)
            self.said("quiet" if row.kind == "note" else "told", self.width / 2, y - 1, row.label,
                      min(_WIDE, int((self.width - 32) / LETTER)), "middle", row.line)
        elif row.kind == "struck":
            self.line("cut", lane, y, self.proxy, y)
            self.add("polygon", "struck", points=f"{self.proxy:.0f},{y - 8:.0f} {self.proxy + 8:.0f},{y:.0f} "
                     f"{self.proxy:.0f},{y + 8:.0f} {self.proxy - 8:.0f},{y:.0f}")
            self.said("quiet", self.text, y - 5, row.label, _LABEL, whole=row.line)
            self.said("did", self.proxy + 16, y + 4, row.did, _DID, whole=row.line)
        elif row.kind == "open":
            self.add("circle", "dot", cx=lane, cy=y, r=4)
            self.said("quiet", self.text, y + 4, row.label, _LABEL, whole=row.line)
        elif row.kind == "close":
            for to in (-1, 1):
                self.line("cross", lane - 5, y - 5 * to, lane + 5, y + 5 * to)
            self.said("quiet", self.text, y + 4, row.label or "closed", _LABEL, whole=row.line)
            self.said("did" if "by proxy" in row.did else "quiet", self.proxy + 16, y + 4, row.did, _DID,
                      whole=row.line)
        else:
            self._arrow(row, lane, y)

    def _arrow(self, row: Row, lane: float, y: float) -> None:
        style = "ask" if row.kind == "request" else "fold" if row.kind == "fold" else "answer"
        self.line(style, lane, y, self.server, y)
        if row.kind in ("request", "fold"):
            self.head(style, self.server, y, 1)
        if row.kind != "request":
            self.head(style, lane, y, -1)
        self.add("circle", style, cx=self.proxy, cy=y, r=2.5)
        self.said("quiet" if row.kind == "fold" else "", self.text, y - 5, row.label, _LABEL, whole=row.line)


_BESIDE = frozenset({"request", "reply", "push", "fold", "struck", "open", "close"})


def diagram(log: Sequence[str]) -> str:
    """Return the diagram for the lines of a wire log, as an SVG element; "" where there are none."""
    found = rows(log)
    if not found:
        return ""
    drawing = _Drawing(found)
    for number, row in enumerate(found):
        drawing.row(row, _TOP + ROW * number + ROW / 2)
    return ElementTree.tostring(drawing.svg, encoding="unicode")
