"""Campaigns on kvproof's own parts: right ones have no finding, and a mistake in each is one."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kvproof.campaigns import targets
from kvproof.campaigns.own import decoder, proofs, walks
from kvproof.campaigns.own.part import Part
from kvproof.errors import UsageError
from kvproof.faults.scanner import Scanner
from kvproof.models.lifecycle import Fetches
from kvproof.runner.child import Session
from kvproof.spec import library
from kvproof.spec.refine import Arrow
from kvproof.spec.refine_operations import FetchRefinement
from tests.campaigning import findings, run
from tests.mistakes import lifecycle as lifecycles

NO_SESSION = cast(Session, None)


def first_wrong(part: Any, tries: int) -> tuple[Any, str]:
    """Play cases here until one is wrong; return it, and what is wrong, "" when nothing is."""
    choose, kept = random.Random(0), [part.fresh(random.Random(0))]
    for _ in range(tries):
        case = part.fresh(choose) if choose.random() < 0.6 else part.changed(kept[-1], choose, choose.choice(kept))
        assert part.read(case.document()) == case
        kept.append(case)
        found = part.inside(NO_SESSION, case.document())
        if found["wrong"]:
            return case, found["wrong"]
    return None, ""


@pytest.mark.parametrize(("part", "tries"), [(decoder, 1000), (walks, 80)])
def test_nothing_is_wrong(part: Any, tries: int) -> None:
    assert first_wrong(part, tries) == (None, "")


def test_a_scanner_that_is_wrong_is_found_and_the_stream_is_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(Scanner):
        def feed(self, data: Any) -> Any:
            frames = super().feed(data)
            return frames[:-1] if len(frames) == 3 else frames

    monkeypatch.setattr(decoder, "Scanner", Hasty)
    case, wrong = first_wrong(decoder, 500)
    assert wrong.startswith("the proxy's scanner says otherwise of the stream")
    least, smaller = case, True
    while smaller:
        smaller = False
        for less in decoder.simpler(least):
            if less.size < least.size and decoder.inside(NO_SESSION, less.document())["wrong"]:
                least, smaller = less, True
                break
    assert (len(least.stream), least.cuts) == (9, ()), least.lines()


def test_a_model_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, _, limits = walks._worlds()["fetches"]
    kinds = [kind for kind in vars(lifecycles).values()
             if isinstance(kind, type) and issubclass(kind, Fetches) and kind is not Fetches]
    assert kinds
    for kind in kinds:
        mistaken = {name: (lambda choose, kind=kind: kind(*_fields(draw(choose))),
                           lambda world: Arrow(FetchRefinement(), world), limits) for name in walks.MODELS}
        with monkeypatch.context() as patched:
            patched.setattr(walks, "_worlds", lambda mistaken=mistaken: mistaken)
            _, wrong = first_wrong(walks, 200)
        assert "the spec " in wrong or "it is false that" in wrong, kind


def _fields(world: Fetches) -> tuple[Any, ...]:
    return (world.fetches, world.peers)


def test_obligations_are_proved_with_another_seed_and_one_that_is_false_is_found(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    [right] = library.select(["prefix.*min*"])[:1] or library.obligations()[:1]
    proved = proofs.inside(NO_SESSION, {"obligation": right.id, "seed": 12345})
    assert (proved["wrong"], proved["unknown"], proved["behaviour"]) == ("", "", [f"{right.id}: proved"])
    # One whose claim is false, and does not say so: the solver answers that at once, whatever its seed.
    [false] = library.select(["keys.other-world"])
    assert false.limit
    monkeypatch.setattr(library, "obligations", lambda: [replace(false, limit=False)])
    wrong = proofs.inside(NO_SESSION, {"obligation": false.id, "seed": 1})["wrong"]
    assert wrong.startswith(f"{false.id} is refuted")
    with pytest.raises(UsageError, match="no obligation is called 'nothing'"):
        proofs.inside(NO_SESSION, {"obligation": "nothing", "seed": 1})


def test_worlds_are_explored() -> None:
    number = proofs.WORLDS.index((2, 3))
    found = proofs.inside(NO_SESSION, {"obligation": proofs.EXPLORED, "seed": number})
    assert (found["wrong"], found["behaviour"]) == ("", ["explore 2 3: 345 states"])


def never(session: Session, document: Any) -> None:
    """Do not come back."""
    time.sleep(60)


def dies(session: Session, document: Any) -> None:
    """Raise something."""
    raise RuntimeError("out of order")


@pytest.mark.parametrize(("inside", "rule", "verdict", "said"), [
    ("never", "bounded-time", "hang", "in test_campaign_own.py:"),
    ("dies", "same-stream", "fail", "raised RuntimeError: out of order"),
])
def test_a_part_that_hangs_or_raises_is_found(inside: str, rule: str, verdict: str, said: str) -> None:
    part = replace(decoder.PART, inside=f"{__name__}:{inside}", deadline=0.5)
    with ExitStack() as stack:
        played = part.opened(stack, threading.Event()).play(decoder.Case(b"+OK\r\n"), "here")
    assert played.violation is not None
    assert (played.violation.rule, played.violation.verdict) == (rule, verdict)
    assert said in str(played.violation)


@pytest.mark.parametrize(("name", "wrong"), [
    ("decoder", {"stream": "0", "cuts": []}), ("decoder", {"stream": "00", "cuts": [1]}), ("decoder", []),
    ("models", {"model": "none", "first": 0, "choices": []}),
    ("models", {"model": "load", "first": 0, "choices": [-1]}),
    ("obligations", {"obligation": 1, "seed": 0}), ("obligations", {"obligation": "x", "seed": -1}),
])
def test_what_is_no_case_is_said(name: str, wrong: object) -> None:
    with pytest.raises(UsageError, match=f"a case of the {name}: got ") as error:
        targets.read(name, wrong)
    assert "\n" not in str(error.value)


def test_a_campaign_of_them_all(tmp_path: Path) -> None:
    done = run(tmp_path / "dir", "--decoder", "--models", "--obligations", "--for", "15s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert findings(tmp_path / "dir") == []
    for name, part in targets.OWN.items():
        assert isinstance(part, Part), name
