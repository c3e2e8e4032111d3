"""The client's models as their specs: a registry at work as `RegisterFirst`, a connection as `Connection`."""

from __future__ import annotations

from kvproof.models import exchanges
from kvproof.models.client import Failed
from kvproof.models.completions import Event, Operation, World
from kvproof.models.lending import Lent
from kvproof.models.registry import Outcomes
from kvproof.spec.completion_designs import RegisterFirst
from kvproof.spec.ownership import Connection
from kvproof.spec.refine import NOTHING, Arrow, Step
from kvproof.spec.system import Point, System


class CompletionRefinement:
    """The registry forgets what is cancelled; for the spec it is registered until its completion has come."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[RegisterFirst] = RegisterFirst) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, world: World) -> System:
        """Return `RegisterFirst`."""
        return self._kind()

    def size(self, world: World) -> tuple[int, int]:
        """Return the number of workers, and the last operation; ids are as many as operations."""
        return world.workers, len(world.operations) - 1

    def rigid(self, world: World) -> Point:
        """Return how many operations there may be."""
        return {"operations": len(world.operations)}

    def state(self, world: World) -> Point:
        """Return the state; ids are counted from 0."""
        begun = list(enumerate(world.operations))
        workers = range(world.workers)
        return {
            "place": {(o,): each.place if each else "new" for o, each in begun},
            "at": {(o,): each.worker if each else 0 for o, each in begun},
            "id": {(o,): each.identity - 1 if each else 0 for o, each in begun},
            "busy": {(o,): each is not None and not each.over for o, each in begun},
            "registered": {(o,): each is not None and self._registered(world, each) for o, each in begun},
            "promised": {(o,): each is not None and each.given is not None for o, each in begun},
            "cancelled": {(o,): each is not None and each.cancelled for o, each in begun},
            "delivered": {(o,): len(each.given or ()) if each else 0 for o, each in begun},
            "got": {(o,): whose(each.given, o) if each else o for o, each in begun},
            "dead": {(w,): w in world.dead for w in workers},
            "reaped": {(w,): w in world.reaped for w in workers},
            "closed": world.closed,
        }

    @staticmethod
    def _registered(world: World, operation: Operation) -> bool:
        drops = operation.cancelled and not (operation.over or world.closed)
        return operation.registered or drops

    def step(self, world: World, event: Event) -> Step:
        """Return the action; whether a completion is known is the registry's word."""
        o, worker = event.operation, event.worker
        match event.name:
            case "register":
                dealt = sum(each is not None for each in world.operations)
                return "register", (o, dealt, worker)
            case "drain":
                operation = world.operations[o]
                known = operation is not None and self._registered(world, operation)
                return ("drain", (o, o)) if known else ("drain_unknown", (o,))
            case "die" | "reap":
                return event.name, (worker,)
            case "close":
                return "close", ()
        return event.name, (o,)


def whose(given: tuple[Outcomes, ...] | None, o: int) -> int:
    """Return whose completion the slot of o was given: its own as long as it was given none."""
    for outcomes in given or ():
        for outcome in outcomes:
            if isinstance(outcome, Failed) and outcome.reason.startswith("of "):
                return int(outcome.reason.removeprefix("of "))
    return o


class OwnershipRefinement:
    """A piece of a frame that does not end it is nothing to the spec."""

    ghosts: frozenset[str] = frozenset()

    def __init__(self, kind: type[Connection] = Connection) -> None:
        """See it as this system."""
        self._kind = kind

    def system(self, world: exchanges.World) -> System:
        """Return `Connection`."""
        return self._kind()

    def size(self, world: exchanges.World) -> tuple[int, int]:
        """Return one rank, of which nothing is said, and the last request."""
        return 1, len(world.errors) - 1

    def rigid(self, world: exchanges.World) -> Point:
        """Return how many requests there may be, and which replies are errors."""
        return {"requests": len(world.errors), "error": {(k,): error for k, error in enumerate(world.errors)}}

    def state(self, world: exchanges.World) -> Point:
        """Return the state."""
        requests = range(len(world.errors))
        return {
            "sent": world.sent, "taken": world.taken, "turn": world.turn, "pushed": world.pushed, "lent": world.lent,
            "open": world.open, "wanted": {(k,): k in world.wanted for k in requests},
            "cancelled": {(k,): k in world.cancelled for k in requests}, "got": {(k,): world.got[k] for k in requests},
        }

    def step(self, world: exchanges.World, event: exchanges.Event) -> Step:
        """Return the action of the same name."""
        if event.name == "receive":
            return NOTHING
        return event.name, (event.request,) if event.name == "give_up" else ()


class LendingArrow(Arrow[Lent]):
    """What a pool does at once is several steps of the spec, one after another."""

    def allows(self, world: Lent, event: exchanges.Event) -> bool:
        """Whether the spec allows what the pool did, in the order in which it did it."""
        later = world.after(event)
        state = self.refinement.state(world)
        for did in later.did:
            name, picks = self.refinement.step(world, did)
            if not self.concrete.enabled(name, picks, self.rigid, state):
                return False
            state = self.concrete.after(name, picks, self.rigid, state)
        return state == self.refinement.state(later)
