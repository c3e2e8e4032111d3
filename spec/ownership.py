"""ownership: on a connection that many callers use in turn, a reply reaches the request that it answers, or nobody."""

from __future__ import annotations

from typing import Any

import z3

from kvproof.spec.obligation import Always, Mutant, Obligation
from kvproof.spec.system import Step, System, action
from kvproof.spec.theory import Bool, Formula, Int, Rigid, State, View, exists, forall, put, within


class Connection(System):
    """One connection that is lent to one caller at a time, who writes any number of requests and reads their replies.

    Requests are numbered as they are written, and the server answers them in that order; push frames may come between
    any two replies. `sent` and `taken` count requests written and replies read off the wire. The client has no numbers
    on the wire to go by: `turn` is the request that it believes the next reply to be for. `wanted(k)`: the caller of k
    waits. `got(k)`: the number of the reply that it was given, -1 for none.
    """

    requests = Rigid(Int)
    error = Rigid(Int, Bool)

    sent = State(Int)
    taken = State(Int)
    turn = State(Int)
    pushed = State(Bool)
    lent = State(Bool)
    open = State(Bool)
    wanted = State(Int, Bool)
    cancelled = State(Int, Bool)
    got = State(Int, Int)

    def axioms(self, s: View) -> list[Formula]:
        """There is some number of requests."""
        return [s.requests >= 0]

    def sized(self, s: View, size: int) -> list[Formula]:
        """Requests 0 to `size`."""
        return [s.requests <= size + 1]

    def init(self, s: View) -> list[Formula]:
        """A new connection that nobody has borrowed."""
        return [
            s.sent == 0, s.taken == 0, s.turn == 0, s.open, z3.Not(s.lent), z3.Not(s.pushed),
            forall(Int, lambda k: z3.And(z3.Not(s.wanted(k)), z3.Not(s.cancelled(k)), s.got(k) == -1)),
        ]

    @action()
    def send(self, s: View) -> Step:
        """The borrower, who takes the connection out of the pool for that, writes a request; several are a pipeline."""
        return Step(
            z3.And(s.open, s.sent < s.requests), sent=s.sent + 1, lent=z3.BoolVal(True),
            wanted=put(s.wanted, s.sent, True),
        )

    @action(fair=False)
    def push(self, s: View) -> Step:
        """The server sends a push frame, which comes before the next reply that is read."""
        return Step(z3.And(s.open, z3.Not(s.pushed)), pushed=z3.BoolVal(True))

    @action()
    def read(self, s: View) -> Step:
        """The borrower reads the next reply; it goes to the request whose turn it is, if that is still wanted."""
        ready = z3.And(s.open, s.lent, z3.Not(s.pushed), s.taken < s.sent, s.turn < s.sent)
        return Step(
            ready, taken=s.taken + 1, turn=self.following(s), wanted=put(s.wanted, s.turn, False),
            got=put(s.got, s.turn, z3.If(s.wanted(s.turn), s.taken, s.got(s.turn))),
        )

    def following(self, s: View) -> Any:
        """Whose turn it is after this reply, which may be an error."""
        return s.turn + 1

    @action()
    def read_push(self, s: View) -> Step:
        """A push frame is read, at any time, also from a connection in the pool; it is nobody's reply."""
        return Step(z3.And(s.open, s.pushed), pushed=z3.BoolVal(False))

    @action(fair=False, k=Int)
    def give_up(self, s: View, k: Any) -> Step:
        """The caller of k cancels or times out; its reply is still read, for nobody."""
        ready = z3.And(within(0, k, s.sent), s.wanted(k))
        return Step(ready, wanted=put(s.wanted, k, False), cancelled=put(s.cancelled, k, True))

    @action()
    def give_back(self, s: View) -> Step:
        """The borrower returns the connection, and the next one counts from what is written so far."""
        return Step(
            z3.And(s.open, s.lent, self.clean(s)), lent=z3.BoolVal(False), turn=s.sent,
            wanted=lambda k: z3.BoolVal(False),
        )

    def clean(self, s: View) -> Formula:
        """Whether no reply is outstanding."""
        return s.turn == s.sent

    @action(fair=False)
    def drop(self, s: View) -> Step:
        """After an error of the connection, or rather than read on, it is closed; whoever waits gets an error."""
        return Step(
            s.open, open=z3.BoolVal(False), lent=z3.BoolVal(False), wanted=lambda k: z3.BoolVal(False),
            cancelled=lambda k: z3.Or(s.cancelled(k), s.wanted(k)),
        )

    def invariant(self, s: View) -> dict[str, Formula]:
        """Whose turn it is, is what was read off the wire."""
        return {
            **self.safety(s),
            "order": z3.And(
                s.taken >= 0, s.taken <= s.sent, s.sent <= s.requests, s.turn == s.taken),
            "to come": forall(Int, lambda k: z3.Implies(k >= s.turn, s.got(k) == -1)),
            "unsent": forall(Int, lambda k: z3.Implies(k >= s.sent, z3.Not(z3.Or(s.wanted(k), s.cancelled(k))))),
            "waiting": forall(Int, lambda k: z3.Implies(s.wanted(k), s.got(k) == -1)),
            "nobody": forall(Int, lambda k: z3.Implies(
                within(s.turn, k, s.sent), s.wanted(k) != s.cancelled(k))),
        }

    def safety(self, s: View) -> dict[str, Formula]:
        """What is claimed of every reachable state."""
        return {
            "own-reply": forall(Int, lambda k: z3.Or(s.got(k) == -1, s.got(k) == k)),
            "in-turn": forall(Int, lambda k: z3.Implies(
                within(0, k, s.taken), z3.Or(s.got(k) == k, s.cancelled(k)))),
            "clean-return": z3.Implies(z3.And(s.open, z3.Not(s.lent)), s.taken == s.sent),
        }


class ReturnedEarly(Connection):
    """A caller that gives up returns the connection, although replies are outstanding."""

    def clean(self, s: View) -> Formula:
        """Ask only whether anybody still waits."""
        return forall(Int, lambda k: z3.Not(s.wanted(k)))


class StopsAtError(Connection):
    """Reading stops at the first error of a pipeline: it is raised, and the rest counts as read."""

    def following(self, s: View) -> Any:
        """Skip the rest of the pipeline after an error."""
        return z3.If(s.error(s.taken), s.sent, s.turn + 1)


class PushIsReply(Connection):
    """A push frame is taken for the reply to the request whose turn it is."""

    @action()
    def read_push(self, s: View) -> Step:
        """Give the frame, which is no reply (its number is -2), to the request."""
        step = super().read_push(s)
        ready = z3.And(step.guard, s.lent, s.turn < s.sent)
        got = put(s.got, s.turn, z3.If(s.wanted(s.turn), -2, s.got(s.turn)))
        return Step(ready, **step.changes, turn=s.turn + 1, got=got, wanted=put(s.wanted, s.turn, False))


_SCOPE = "any number of requests, pipelines and callers; cancel, timeout, push frames and error replies anywhere"
_FRAGMENT = "linear integer arithmetic and uninterpreted functions, with quantifiers"
_SIZES = ((1, 0), (1, 1), (1, 2))
_SHIFT = "every later reply on this connection reaches the request after its own"


def _second_reply(theory: Any, s: View) -> Formula:
    """A request after a cancelled one has been given its reply."""
    return exists(Int, Int, lambda k, later: z3.And(
        0 <= k, k < later, later < s.requests, s.cancelled(k), s.got(k) == -1, s.got(later) == later))


def _mutants(returned: str, stops: str, push: str) -> tuple[Mutant, ...]:
    return (
        Mutant("returned-early", "the connection is returned with a reply outstanding", ReturnedEarly, returned),
        Mutant("stops-at-error", "reading stops at a pipeline's first error", StopsAtError, stops),
        Mutant("push-is-reply", "a push frame is taken for a reply", PushIsReply, push),
    )


def _always(name: str, claim: str, mutants: tuple[Mutant, ...]) -> Always:
    return Always(
        id=f"ownership.{name}", claim=claim, scope=_SCOPE, theory=Connection, fragment=_FRAGMENT, safety=name,
        sometimes=_second_reply, depth=7, mutants=mutants, sizes=_SIZES, witness_sizes=((1, 1),),
    )


_OUTSTANDING = "the pool holds a connection with a reply outstanding, which the next borrower will take for its own"

OBLIGATIONS: tuple[Obligation, ...] = (
    _always("own-reply", "a request is given the reply to itself, or none", _mutants(
        "the next borrower is given the reply to the request that was given up; " + _SHIFT,
        "what was left of the pipeline is read as the reply to a later request; " + _SHIFT,
        "a request is given a push frame, and its own reply is left for the next one",
    )),
    _always("in-turn", "once a reply is read, its request has it, unless it was given up", _mutants(
        "the reply was read for another request, and its own caller has that of the one before; " + _SHIFT,
        "the reply was read for another request, and its own caller got an error that was not its own; " + _SHIFT,
        "the reply was read for the next request, and its own caller has a push frame",
    )),
    _always("clean-return", "a connection in the pool has no reply outstanding", _mutants(
        _OUTSTANDING, _OUTSTANDING, _OUTSTANDING)),
)
