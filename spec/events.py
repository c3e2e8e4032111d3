"""The events of each protocol: what a log has to say with each, what it may say, and what it means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

BEGIN = "begin"
"""The event that says what world a step is in; it is no action."""
Form = type[int] | type[bool] | tuple[str, ...]
"""What a value is: a whole number, a truth value, or one of some words."""
_NATURAL = frozenset({"chunk", "failure", "agreed", "request", "worker", "workers", "world_size", "length", "layout"})


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of event: what it means, the values that it needs, and those that it may have besides.

    forms: what values are, where they are not numbers that everybody has. taker: the value that is who recorded it.
    """

    means: str
    needs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    forms: Mapping[str, Form] = field(default_factory=dict)
    taker: str = ""

    @property
    def takes(self) -> str:
        """Return in words what values it takes."""
        optional = [f"{name} (optional)" for name in self.may]
        return ", ".join([*self.needs, *optional]) or "nothing"


Events = Mapping[str, Event]

LOAD: Events = {
    BEGIN: Event(
        "what the rank was told: how many ranks there are, how many chunks its list has, which rank owns each chunk; "
        "`fingerprint` (equal for equal lists only) and `layout` where they may differ",
        ("world_size", "length"), ("owners", "fingerprint", "layout")),
    "arrive": Event("the bytes of a chunk of its own have come: early, late or never; may be left out", ("chunk",)),
    "look": Event("it goes past a chunk that it has, or that is not its own; may be left out"),
    "enter_exchange": Event(
        "it is about to enter the exchange; `failure` is the first chunk of its own that it misses, `length` when it "
        "misses none", (), ("failure",)),
    "leave_exchange": Event("it has left the exchange; `agreed` is the least failure of all ranks, 0 when the "
                            "fingerprints or layouts differ", (), ("agreed",)),
    "enter_broadcast": Event("it is about to enter the broadcast of the next agreed chunk", (), ("chunk",)),
    "leave_broadcast": Event("it has left that broadcast", (), ("chunk",)),
    "die": Event("it dies"),
    "expire": Event("it has waited long enough in a collective, and gives the step up"),
    "call": Event("it is done with this step, and about to enter the first collective of a later one"),
    "answer": Event("it has left that collective of the later step"),
}
ENDS = frozenset({"die", "expire", "call", "answer"})
"""Events of the loading protocol that there are only where ranks may fail."""

COMPLETION: Events = {
    BEGIN: Event("how many workers there are; may be left out", (), ("workers",)),
    "register": Event("its future is in the table; `worker` is the one it will run on, from 0 on",
                      ("operation",), ("worker",)),
    "submit": Event("it is about to be handed to a worker", ("operation",)),
    "complete": Event("a worker has ended it; may be left out", ("operation",)),
    "drain": Event("its completion was taken from the queue: for every operation that was registered, also one that "
                   "was cancelled", ("operation",)),
    "drain_unknown": Event("a completion was taken from the queue that no future is registered for: as it is after "
                           "`close`; before that, the completion is lost", ("operation",)),
    "cancel": Event("its caller has cancelled the future, which had not ended", ("operation",)),
    "close": Event("nothing new is taken, and every future that had not ended has"),
    "die": Event("a worker has died", (), ("worker",)),
    "reap": Event("the client has seen that, and ended what that worker had", (), ("worker",)),
}

OWNERSHIP: Events = {
    "send": Event("who has borrowed the connection is about to write a request"),
    "read": Event("it has read the next reply; `request` is the one that was given it, or that it was thrown away for",
                  (), ("request",)),
    "give_up": Event("the caller of that request has cancelled it, or timed out", ("request",)),
    "read_push": Event("a push frame was read, which is nobody's reply"),
    "give_back": Event("the connection is back in the pool"),
    "drop": Event("the connection is closed, for whatever reason"),
}


def complaint(events: Events, event: str, rank: int, values: Mapping[str, Any]) -> str:
    """Return how a line is no event of a protocol, in the names that were written; "" when it is one."""
    known = events.get(event)
    if known is None:
        return f"there is no event {event!r}; there are {', '.join(events)}"
    for name in values:
        if name not in known.needs and name not in known.may:
            return f"{event} takes no {name!r}; it takes {known.takes}"
    for name in known.needs:
        if name not in values:
            return f"{event} needs {name!r}; it takes {known.takes}"
    for name, value in values.items():
        if name in _NATURAL and (type(value) is not int or value < 0):
            return f"{event} has {name} = {_short(value)}; expected a natural number"
        if name == "operation" and type(value) not in (int, str):
            return f"{event} has {name} = {_short(value)}; expected a number or a string"
        if name == "fingerprint" and type(value) not in (int, str):
            return f"{event} has {name} = {_short(value)}; expected a number or a string"
        form = known.forms.get(name)
        if form is not None and not fits(form, value):
            return f"{event} has {name} = {_short(json.dumps(value), str)}; expected {expected(form)}"
    if known.taker in values and values[known.taker] != rank:
        return f"{event} has {known.taker} = {values[known.taker]}, which is who recorded it: rank {rank}"
    return ""


def _short(value: Any, written: Callable[[Any], str] = repr) -> str:
    text = written(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def fits(form: Form, value: Any) -> bool:
    """Return whether a value is of a form."""
    return type(value) is str and value in form if isinstance(form, tuple) else type(value) is form


def expected(form: Form) -> str:
    """Return in words what a form is."""
    if isinstance(form, tuple):
        return f"one of {', '.join(json.dumps(each) for each in form)}"
    return "a whole number" if form is int else "true or false"
