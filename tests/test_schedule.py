"""Fault schedules: a round trip through JSON; a malformed one is refused with entry, field and what is allowed."""

from __future__ import annotations

import json

import pytest

from kvproof.errors import UsageError
from kvproof.faults.families.hold import Hold
from kvproof.faults.schedule import from_json, to_json


def test_a_schedule_survives_json() -> None:
    schedule = (
        Hold(command="GET", key="m@*", match=3, connection=2, until="go"),
        Hold(command="MGET", key="\udcff[ab]?", until="request:GET *"),
        Hold(until="close"),
    )
    assert from_json(to_json(schedule)) == schedule
    assert from_json(to_json(())) == ()


GOOD = {"fault": "hold", "command": "GET", "key": "*", "match": 1, "connection": None, "until": "go"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fault": "hodl"}, 'schedule entry 2 of 2, field fault: got "hodl"; allowed: bandwidth, '),
        ({"fault": ["hold"]}, 'schedule entry 2 of 2, field fault: got ["hold"]; allowed: bandwidth, '),
        ({"color": 1}, "schedule entry 2 of 2 (hold), field color: there is no such field; allowed: at, command, conn"),
        ({"command": ""}, "schedule entry 2 of 2: hold, field command: got ''; allowed: the name of a command"),
        ({"command": 7}, "schedule entry 2 of 2: hold, field command: got 7; allowed: the name of a command"),
        ({"key": None}, "schedule entry 2 of 2: hold, field key: got None; allowed: a glob"),
        ({"match": 0}, "schedule entry 2 of 2: hold, field match: got 0; allowed: an integer from 1"),
        ({"match": True}, "schedule entry 2 of 2: hold, field match: got True; allowed: an integer from 1"),
        ({"connection": "1"}, "schedule entry 2 of 2: hold, field connection: got '1'; allowed: null, or an integer"),
        ({"until": ""}, "schedule entry 2 of 2: hold, field until: got ''; allowed: \"close\", \"request:"),
        ({"until": "request:"}, "schedule entry 2 of 2: hold, field until: got 'request:'; allowed: \"close\""),
        ({"until": ["go"]}, "schedule entry 2 of 2: hold, field until: got ['go']; allowed: \"close\""),
    ],
)
def test_a_malformed_entry_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_json(json.dumps([GOOD, {**GOOD, **change}]))
    assert str(caught.value).startswith(said), f"{change}: expected {said!r}, got {str(caught.value)!r}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("\xff", "not JSON"),
        ('{"fault": "hold"}', "a schedule is a JSON array"),
        ("[7]", "schedule entry 1 of 1: got 7; allowed: an object"),
        ('[{"fault": "hold"}]', "schedule entry 1 of 1 (hold), field until: it is missing"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_json(text)
    assert said in str(caught.value), f"{text!r}: expected {said!r}, got {str(caught.value)!r}"


def test_a_hold_is_checked_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="hold, field until: got 'a b'; allowed:"):
        Hold(command="GET", until="a b")
