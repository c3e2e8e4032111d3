"""Logs of a client: operations and their completions, and the requests and replies of connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.spec.completion_designs import RegisterFirst
from kvproof.spec.events import COMPLETION, OWNERSHIP
from kvproof.spec.follow import Follower, Seen, Told, Unclear
from kvproof.spec.ownership import Connection
from kvproof.spec.protocol import Begun, NoSuchWorld, Protocol, first, listed, natural
from kvproof.spec.system import Point

IN_FLIGHT = 24
"""Operations or requests that are followed at once; of more it cannot be told."""


class Completion(Protocol):
    """Operations of a client that registers before it submits; `operation` is its id, `worker` the one it runs on.

    An operation is a small number here, which another has when it is over.
    """

    events = COMPLETION

    def __init__(self) -> None:
        """Begin with nothing in flight."""
        self._slots: dict[Any, int] = {}

    def _slot(self, identity: Any) -> int:
        if identity not in self._slots:
            free = next((slot for slot in range(IN_FLIGHT) if slot not in self._slots.values()), None)
            if free is None:
                raise Unclear(f"more than {IN_FLIGHT} operations are in flight")
            self._slots[identity] = free
        return self._slots[identity]

    def begin(self, begun: Begun, ranks: set[int], recorded: set[str]) -> None:
        """Begin with no operation; workers complete unseen."""
        system = RegisterFirst()
        workers = max([natural(each, "workers", 1) for each in begun], default=1)
        hidden = [name for name in ("complete",) if name not in recorded]
        state = first(system, workers, IN_FLIGHT - 1, got=lambda operation: operation)
        self._fresh = state
        self.follower = Follower(
            system, workers, IN_FLIGHT - 1, {"operations": IN_FLIGHT}, state, hidden, recycle=self._recycle)

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event of the operation's own number."""
        if values.get("worker", 0) >= self.follower.ranks:
            raise NoSuchWorld(f"{event} has worker = {values['worker']}, and there are {self.follower.ranks}; record "
                              "how many `workers` there are in a `begin`")
        if "operation" not in values:
            return Seen(event, rank, {"w": values.get("worker", 0)} if event in ("die", "reap") else {})
        slot = self._slot(values["operation"])
        picks = {"o": slot}
        if event == "register":
            picks |= {"w": values.get("worker", 0), "i": slot}
        if event == "drain":
            picks["p"] = slot
        return Seen(event, rank, picks)

    def has(self, rank: int) -> bool:
        """Return that anybody may record what a client does; the ranks of its world are its workers."""
        return True

    def _recycle(self, state: Point) -> Point:
        """Forget what is over: delivered, drained, and its id given back."""
        over = [identity for identity, slot in self._slots.items() if state["place"][slot,] == "gone"
                and state["delivered"][slot,] == 1 and not state["busy"][slot,] and not state["registered"][slot,]]
        if not over:
            return state
        changed = {name: dict(value) if isinstance(value, dict) else value for name, value in state.items()}
        for identity in over:
            slot = self._slots.pop(identity)
            for name, value in changed.items():
                if isinstance(value, dict) and (slot,) in value and name not in ("dead", "reaped"):
                    value[slot,] = self._fresh[name][slot,]
        return changed

    def unfinished(self) -> list[str]:
        """Return each operation that waits, or whose id is taken, when the log ends."""
        state, told = self.follower.may_be[0].state, []
        for identity, slot in self._slots.items():
            if state["cancelled"][slot,] and state["registered"][slot,]:
                told.append(f"operation {identity} was cancelled, and its completion never drained")
            elif state["promised"][slot,] and state["delivered"][slot,] == 0:
                done = "registered and never submitted" if state["place"][slot,] == "new" else (
                    "submitted and never drained")
                told.append(f"operation {identity} was {done}")
        return told

    def why(self, event: str, rank: int, values: Mapping[str, Any], state: Point) -> str:
        """Return why an event cannot be."""
        if "operation" not in values:
            return "the client was closed before" if event == "close" and state["closed"] else ""
        slot, operation = self._slot(values["operation"]), f"operation {values['operation']}"
        known, waits = state["promised"][slot,], state["registered"][slot,]
        place, ended = state["place"][slot,], state["delivered"][slot,]
        if event == "register":
            if state["closed"]:
                return "the client is closed, and takes nothing new"
            return f"{operation} was registered before, and its completion not drained" if known else ""
        if not known:
            lost = "; its completion finds nobody, and is lost" if event == "drain_unknown" else ""
            return f"{operation} was never registered, or is over{lost}"
        if event == "submit":
            if place != "new":
                return f"{operation} was submitted before"
            return "" if waits else f"{operation} has ended, by a cancellation or the close"
        if event == "cancel":
            return f"{operation} had ended" if ended else ""
        if place == "new":
            return f"{operation} was not submitted"
        if place == "gone":
            return f"{operation} has no completion outstanding: it was drained before"
        if event == "drain" and not waits:
            return f"{operation} is registered no more: after `close`, record `drain_unknown`"
        if event == "drain_unknown" and waits:
            return f"{operation} is registered: record `drain`, also when it was cancelled"
        return ""


class Ownership(Protocol):
    """Requests and replies of one connection, which is a step of the log.

    Of those with a reply nothing is kept, so that a connection may live as long as it likes.
    """

    events = OWNERSHIP
    place = "connection"

    def __init__(self) -> None:
        """Begin with no request."""
        self._base = 0

    def begin(self, begun: Begun, ranks: set[int], recorded: set[str]) -> None:
        """Begin with a new connection."""
        system, size = Connection(), IN_FLIGHT - 1
        rigid = {"requests": IN_FLIGHT, "error": {(k,): False for k in range(IN_FLIGHT)}}
        hidden = [name for name in ("push",) if name not in recorded]
        self.follower = Follower(
            system, 1, size, rigid, first(system, 1, size, got=-1, open=True), hidden, recycle=self._recycle)

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event; `request` counts those sent on this connection, from 0."""
        state, base = self.follower.may_be[0].state, self._base
        if event == "send" and state["open"] and state["sent"] == IN_FLIGHT:
            raise Unclear(f"more than {IN_FLIGHT} requests are outstanding")
        if "request" not in values:
            return Seen(event, 0, {})
        if event == "read":
            # It says whose turn it was, so that the turn is now the next one's.
            return Seen(event, 0, {"turn": values["request"] - base + 1},
                        {"turn": Told("request", lambda turn: turn - 1 + base)})
        return Seen(event, 0, {"k": values["request"] - base}, {"k": Told("request", lambda k: k + base)})

    def has(self, rank: int) -> bool:
        """Return that anybody may record what happens on a connection."""
        return True

    def _recycle(self, state: Point) -> Point:
        """Count from the first request that has no reply yet."""
        over = state["taken"]
        if state["sent"] < IN_FLIGHT // 2 or not over or not state["open"]:
            return state
        self._base += over
        fresh = first(Connection(), 1, IN_FLIGHT - 1, got=-1, open=True)
        later = {name: {(k,): state[name].get((k + over,), fresh[name][k,]) for k in range(IN_FLIGHT)}
                 for name in ("wanted", "cancelled", "got")}
        return {**state, **{name: state[name] - over for name in ("sent", "taken", "turn")}, **later}

    def _outstanding(self, state: Point) -> str:
        """Return which requests have no reply yet; "" when all have."""
        requests = range(state["taken"], state["sent"])
        return listed([number + self._base for number in requests], "request") if requests else ""

    def unfinished(self) -> list[str]:
        """Return which replies have not been read when the log ends and the connection is open."""
        state = self.follower.may_be[0].state
        outstanding = self._outstanding(state)
        return [f"no reply was read to {outstanding}"] if state["open"] and outstanding else []

    def why(self, event: str, rank: int, values: Mapping[str, Any], state: Point) -> str:
        """Return why an event cannot be."""
        if not state["open"]:
            return "the connection was dropped before"
        outstanding = self._outstanding(state)
        count = state["sent"] - state["taken"]
        if event == "read" and not outstanding:
            return "no reply is outstanding"
        if event == "read" and "request" in values:
            return f"the next reply is that to request {state['turn'] + self._base}"
        if event == "give_up":
            if values["request"] - self._base >= state["sent"]:
                return f"request {values['request']} was not sent"
            return f"request {values['request']} has its reply, or was given up before"
        if event == "give_back":
            if not state["lent"]:
                return "nobody has borrowed the connection: nothing was sent since it was given back"
            are = "one reply is" if count == 1 else f"{count} replies are"
            return f"{are} still outstanding ({outstanding})"
        return ""
