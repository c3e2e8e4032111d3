"""Results as JUnit XML, for CI."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from kvproof.report import kind_of
from kvproof.results import INCONCLUSIVE, CellRow, Results
from kvproof.traces.text import printable
from kvproof.witnesses import again


def _junit_cell(suite: ElementTree.Element, row: CellRow) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"check.{row.connector}", name=row.id,
                                  time=f"{row.seconds:.3f}")
    tag = {"finding": "failure", "inconclusive": "error", "neutral": "skipped", "known": "skipped"}.get(kind_of(row))
    if tag is not None:
        message = f"{row.verdict}{' (known)' if row.known else ''}: {row.explain}"
        said = ElementTree.SubElement(case, tag, message=printable(message), type=row.verdict)
        if tag in ("failure", "error"):
            said.text = printable(f"again: {again(row)}")


def document(results: Results) -> str:
    """Return the results as JUnit XML: a finding is a failure, an inconclusive row an error, unsupported is skipped."""
    suite = ElementTree.Element("testsuite", name="kvproof")
    for row in results.replays:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"replay.{row.connector}", name=row.bug, time=f"{row.seconds:.3f}"
        )
        kind = kind_of(row)
        tag = {"finding": "failure", "inconclusive": "error", "neutral": "skipped", "known": "skipped"}.get(kind)
        if tag is not None:
            message = f"{row.verdict}{' (known)' if row.known else ''}: {row.explain}"
            ElementTree.SubElement(case, tag, message=printable(message), type=row.verdict)
    for cell in results.cells:
        _junit_cell(suite, cell)
    for claim in results.obligations:
        case = ElementTree.SubElement(
            suite, "testcase", classname="obligation", name=claim.id, time=f"{claim.seconds:.3f}"
        )
        if claim.verdict != "proved" and not claim.known:
            tag = "error" if claim.verdict in INCONCLUSIVE else "failure"
            message = printable(f"{claim.verdict}: {claim.explain}")
            ElementTree.SubElement(case, tag, message=message, type=claim.verdict)
    for complaint in results.complaints:
        case = ElementTree.SubElement(suite, "testcase", classname=f"known.{complaint.connector}", name=complaint.entry)
        ElementTree.SubElement(case, "failure", message=complaint.problem, type="stale")
    _count(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _count(suite: ElementTree.Element) -> None:
    cases: Sequence[ElementTree.Element] = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for tag, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
