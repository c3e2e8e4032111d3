"""Logs of a client: operations and their completions, and the requests and replies of connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from kvproof.spec.completion_designs import RegisterFirst
from kvproof.spec.events import COMPLETION, OWNERSHIP
from kvproof.spec.finite import Finite, finite
from kvproof.spec.follow import Condition, Follower, Seen, Steps, Told, Unclear, Way
from kvproof.spec.ownership import Connection
from kvproof.spec.protocol import Begin, Begun, NoSuchWorld, Protocol, alike, first, listed, natural, sized
from kvproof.spec.system import Point, System

WINDOW, MOST_IN_FLIGHT = 4, 4096
"""Operations or requests that are followed at once: at first, and in the end; of more it cannot be told."""


_OF_ALL = frozenset({"dead", "reaped", "closed"})
"""What is so of workers and the client, and of no operation."""


class Windowed(Protocol):
    """A protocol of which those operations or requests are followed that are not over, in a window that grows."""

    kind: type[System]
    what = ""

    def __init__(self) -> None:
        """Begin with a small window."""
        self._window = WINDOW

    def rigid(self, window: int) -> Point:
        """Return what is rigid in a window."""
        raise NotImplementedError

    def fresh(self, world: Finite) -> Point:
        """Return the state in which nothing has begun."""
        raise NotImplementedError

    def _grow(self) -> None:
        """Follow twice as many; raises Unclear when those are too many."""
        if self._window >= MOST_IN_FLIGHT:
            raise Unclear(f"more than {MOST_IN_FLIGHT} {self.what}, which is as many as are followed")
        self._window *= 2
        follower = self.follower
        world = finite(self.kind, follower.ranks, self._window - 1)
        fresh = self.fresh(world)
        grown = [Way({name: {**fresh[name], **value} if isinstance(value, dict) else value
                      for name, value in way.state.items()}, way.filled) for way in follower.may_be]
        follower.world, follower.rigid = world, self.rigid(self._window)
        follower.restart(grown)


@lru_cache(maxsize=32)
def _no_operation(world: Finite) -> Point:
    return first(world, got={key: key[0] for key in world.plain["got"]})


@lru_cache(maxsize=32)
def _no_request(world: Finite) -> Point:
    return first(world, got=dict.fromkeys(world.plain["got"], -1), open=True)


@lru_cache(maxsize=32)
def _no_errors(window: int) -> Point:
    return {"requests": window, "error": {(k,): False for k in range(window)}}


class Completion(Windowed):
    """Operations of a client that registers before it submits; `operation` is its id, `worker` the one it runs on.

    An operation is a small number here, which another has when it is over.
    """

    events = COMPLETION
    kind = RegisterFirst
    what = "operations are not over"

    def __init__(self) -> None:
        """Begin with nothing in flight."""
        super().__init__()
        self._slots: dict[Any, int] = {}
        self._free = list(range(WINDOW))[::-1]
        self._ended: set[int] = set()
        self._touched: Sequence[Any] = ()

    def _slot(self, identity: Any) -> int:
        if identity not in self._slots:
            if not self._free:
                self._free = list(range(self._window, 2 * self._window))[::-1]
                self._grow()
            self._slots[identity] = self._free.pop()
        return self._slots[identity]

    def rigid(self, window: int) -> Point:
        """Return how many operations there may be."""
        return {"operations": window}

    def fresh(self, world: Finite) -> Point:
        """Return the state in which no operation has begun."""
        return _no_operation(world)

    def begin(self, begun: Begun, ranks: Set[int], recorded: Set[str]) -> None:
        """Begin with no operation; workers complete unseen."""
        shared = alike(begun, ("workers",))
        workers = natural(Begin(0, shared), "workers", 1)
        world = sized(RegisterFirst, workers, WINDOW - 1)
        hidden = [name for name in ("complete",) if name not in recorded]
        self.follower = Follower(world, self.rigid(WINDOW), self.fresh(world), hidden, self._unseen)

    def _unseen(self, event: Seen | Condition, state: Point) -> Iterator[Steps]:
        """Return that an operation was completed before its completion was taken from the queue."""
        if isinstance(event, Seen) and event.action in ("drain", "drain_unknown"):
            yield [("complete", (event.values["o"],))]

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event of the operation's own number."""
        worker = values.get("worker", 0)
        if worker >= self.follower.ranks:
            raise NoSuchWorld(f"{event} has worker = {worker}, and there are {self.follower.ranks}; record "
                              "how many `workers` there are in a `begin`")
        self._forget()
        self._touched = [values["operation"]] if "operation" in values else list(self._slots) * (event == "reap")
        if event == "die" and self.follower.hidden:
            self._end(worker)
        if "operation" not in values:
            return Seen(event, rank, {"w": worker} if event in ("die", "reap") else {})
        slot = self._slot(values["operation"])
        if event in ("drain", "drain_unknown") and slot in self._ended:
            self.follower.note("complete")
        picks = {"o": slot}
        if event == "register":
            picks |= {"w": worker, "i": slot}
        if event == "drain":
            picks["p"] = slot
        return Seen(event, rank, picks)

    def _end(self, worker: int) -> None:
        """Take what a worker had as ended just before it dies: it may have been, and does no harm if it was not."""
        state = self.follower.may_be[0].state
        slots = [slot for slot in self._slots.values()
                 if state["place"][slot,] == "worker" and state["at"][slot,] == worker and not state["dead"][worker,]]
        self._ended.update(slots)
        for slot in slots:
            self.follower.fill([("complete", (slot,))])

    def has(self, rank: int) -> bool:
        """Return that anybody may record what a client does; the ranks of its world are its workers."""
        return True

    def _forget(self) -> None:
        """Forget what is over, of which only one thing can be so: its id is given back, and its future ended."""
        follower = self.follower
        state = follower.may_be[0].state
        over = [identity for identity in self._touched if identity in self._slots and self._over(identity, state)]
        if not over:
            return
        fresh, ways = self.fresh(follower.world), []
        slots = [self._slots.pop(identity) for identity in over]
        self._free += slots
        self._ended.difference_update(slots)
        for way in follower.may_be:
            changed = {name: dict(value) if name not in _OF_ALL else value for name, value in way.state.items()}
            for name in changed.keys() - _OF_ALL:
                for slot in slots:
                    changed[name][slot,] = fresh[name][slot,]
            ways.append(Way(changed, way.filled))
        follower.restart(ways)

    def _over(self, identity: Any, state: Point) -> bool:
        slot = self._slots[identity],
        return bool(state["promised"][slot] and not state["busy"][slot] and not state["registered"][slot])

    def unfinished(self) -> list[str]:
        """Return each operation that waits, or whose id is taken, when the log ends."""
        state, told = self.follower.may_be[0].state, []
        for identity, slot in self._slots.items():
            if state["cancelled"][slot,] and state["registered"][slot,] and state["place"][slot,] != "new":
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
        slot, operation = self._slots[values["operation"]], f"operation {values['operation']}"
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


class Ownership(Windowed):
    """Requests and replies of one connection, which is a step of the log.

    Of those with a reply nothing is kept, so that a connection may live as long as it likes.
    """

    events = OWNERSHIP
    place = "connection"
    kind = Connection
    what = "requests have no reply yet"

    def __init__(self) -> None:
        """Begin with no request."""
        super().__init__()
        self._base = 0

    def rigid(self, window: int) -> Point:
        """Return how many requests there may be, and that no reply is known to be an error."""
        return _no_errors(window)

    def fresh(self, world: Finite) -> Point:
        """Return the state in which nothing was sent."""
        return _no_request(world)

    def begin(self, begun: Begun, ranks: Set[int], recorded: Set[str]) -> None:
        """Begin with a new connection."""
        world = finite(Connection, 1, WINDOW - 1)
        hidden = [name for name in ("push",) if name not in recorded]
        self.follower = Follower(world, self.rigid(WINDOW), self.fresh(world), hidden, self._unseen)

    def _unseen(self, event: Seen | Condition, state: Point) -> Iterator[Steps]:
        """Return that a push frame came before one was read."""
        if isinstance(event, Seen) and event.action == "read_push":
            yield [("push", ())]

    def seen(self, event: str, rank: int, values: Mapping[str, Any]) -> Seen:
        """Return the event; `request` counts those sent on this connection, from 0."""
        state = self.follower.may_be[0].state
        if event == "send" and state["open"] and state["sent"] == self._window:
            self._slide(state["taken"])
            if state["taken"] <= self._window // 2:
                self._grow()
        base = self._base
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

    def _slide(self, over: int) -> None:
        """Count from the first request that has no reply yet."""
        fresh, ways = self.fresh(self.follower.world), []
        for way in self.follower.may_be:
            state = way.state
            later = {name: {(k,): state[name].get((k + over,), fresh[name][k,]) for k in range(self._window)}
                     for name in ("wanted", "cancelled", "got")}
            # Whose reply it was that a request was given is not asked any more.
            later["got"] = {key: value - over if value >= over else -1 for key, value in later["got"].items()}
            ways.append(Way({**state, **{name: state[name] - over for name in ("sent", "taken", "turn")}, **later},
                            way.filled))
        self._base += over
        self.follower.restart(ways)

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
