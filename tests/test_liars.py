"""Verdicts that do not lie: a bug that hides is not called absent, and a right connector is not accused."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def replay(bug: str, *names: str) -> tuple[int, dict[str, dict[str, str]], str]:
    """Replay a bug on some of the liars at once; return the exit code, the rows by name, and standard error."""
    connectors = [word for name in names for word in ("-c", f"tests.liars:{name}")]
    command = [sys.executable, "-m", "kvproof.cli", "replay", bug, *connectors, "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    rows = json.loads(done.stdout)["replays"] if done.stdout else []
    return done.returncode, {row["connector"].partition(":")[2]: row for row in rows}, done.stderr


EXPECTED = {
    "nil-get": {
        "Honest": ("absent", "a key that exists was served afterwards"),
        "FixedHeader": ("reproduced", "came back only after"),
        "SecondMissHangs": ("reproduced", "never came back"),
        "MasksItself": ("reproduced", "a hit for an absent key, the buffer untouched"),
        "CrashesOnNil": ("reproduced", "never came back (crash: the process killed by signal 11"),
        "HangsInBatches": ("reproduced", "never came back (hang"),
        "Forgets": ("error", "cannot be judged"),
        "MissRaises": ("absent", "the read said raised KeyError: 'absent' (nil in liars.py:"),
        "AsksFirst": ("unsupported", "asks EXISTS first"),
        "WritesBehind": ("error", "of a chunk that was just stored: miss"),
        "WritesNonsense": ("error", "without any fault"),
        "AnswersForUs": ("error", "without any fault"),
        "SaysTooMuch": ("error", "of a chunk that was just stored: failed"),
        "RaisesUnprintable": ("error", "its text cannot be had"),
        "SmallOnly": ("unsupported", "cannot hold chunks of that size"),
        "ReturnsNone": ("error", "expected a list with one outcome a chunk"),
        "ReturnsClass": ("error", "expected an outcome (Hit(), Miss() or Failed(reason))"),
    },
    "cancel-cross-talk": {
        "Honest": ("absent", "got its own value"),
        "KeepsConnection": ("reproduced", "returned the value of ee55 version 1"),
        "Pipelines": ("reproduced", "returned the value of ee55 version 1"),
        "StuckAfterTimeout": ("error", "nothing was served any more"),
        "RaisesAfterTimeout": ("error", "nothing was served any more"),
        "NeverCancels": ("not-felt", "the reply was never held"),
        "EndsBeforeCancel": ("not-felt", "was not given up"),
        "WritesBehind": ("error", "of a chunk that was just stored: miss"),
    },
    "worker-key": {
        "Honest": ("absent", "the stored key was asked for and served"),
        "NotesAccess": ("absent", "the stored key was asked for and served"),
        "WritesBehind": ("error", "no key was set on the wire"),
    },
    "lost-completion": {
        "SlowGap": ("error", "so it was not lost"),
        "RaisingGap": ("error", "name 'outcom' is not defined"),
        "Honest": ("unsupported", "the adapter names no call that hands"),
    },
}


@pytest.mark.parametrize("bug", EXPECTED)
def test_no_verdict_lies(bug: str) -> None:
    _, rows, err = replay(bug, *EXPECTED[bug])
    wrong = [
        f"{name}: expected {verdict} with {words!r}, got {rows[name]['verdict']}: {rows[name]['explain'][:400]}"
        for name, (verdict, words) in EXPECTED[bug].items()
        if rows[name]["verdict"] != verdict or words not in rows[name]["explain"]
    ]
    assert not wrong, "\n".join([*wrong, err])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("WrongAbandons", "WrongAbandons.abandons is 'canceled'; expected \"cancel\", \"timeout\" or \"never\""),
        ("WrongReads", "WrongReads.reads is ('get',); expected a tuple of Read(...)"),
        ("CannotCancel", "CannotCancel.cancel_read"),
        ("NoAdapter", "no subclass of kvproof.connectors.adapter.Adapter"),
        ("Nowhere", "the module tests.liars has no Nowhere"),
    ],
)
def test_an_adapter_that_declares_something_wrong_is_told_so(name: str, expected: str) -> None:
    code, _, err = replay("nil-get", name)
    assert code == 2, err
    assert expected in err
    assert len(err.splitlines()) == 1, err


def test_nothing_that_a_connector_says_reaches_the_terminal_raw() -> None:
    command = [sys.executable, "-m", "kvproof.cli", "replay", "nil-get", "-c", "tests.liars:SaysTooMuch"]
    done = subprocess.run(command, capture_output=True, timeout=100)
    assert done.returncode == 3, done.stderr
    assert b"\x1b" not in done.stdout
    assert b"failed" in done.stdout
