"""What rules are not tried under, and why: the one table."""

from __future__ import annotations

from collections.abc import Mapping

_SECOND = "a second reply is the next request's to any client that pairs replies with requests in order"
_ONCE = "the rule is about what is stored and asked for, not about how an answer comes"
_SLOW = "it only takes longer, and bounded-time tries it"
_NEVER = "no answer comes, so there is nothing that could be wrong in it; bounded-time and recovers try it"

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "*": {"insert:push, insert:attribute": "where the client has not asked for RESP3, no server says such things"},
    "round-trip": {"stall, late, cut, garbage, lie, damage, nil, error, refusal": "nothing right can be read then"},
    "miss-is-miss": {"stall, late, cut, garbage, error": "no null comes then; no-stale-hit and honest-error try these",
                     "lie, damage, refusal": "there is no value, and nothing is stored"},
    "batch-aligned": {"stall, late, cut": _NEVER, "garbage": "no-cross-talk and no-stale-hit try it on batches too",
                      "damage, refusal, harmless": "other rules try these on batches too"},
    "prefix-count": {"stall, late, cut": _NEVER, "lie, damage, nil, refusal": "a look-up has no value and no null",
                     "duplicate": _SECOND},
    "bounded-time": {"harmless, damage, nil, error, refusal": "a whole reply comes; other rules wait for it too"},
    "recovers": {"harmless, lie, damage": "the connection is as good as before",
                 "duplicate": _SECOND, "drip:slow, bandwidth:slow": _SLOW},
    "no-cross-talk": {"harmless, stall, cut": "no reply is left for another call", "duplicate": _SECOND,
                      "damage": "only integrity sees it"},
    "no-stale-hit": {"harmless, stall, late, nil, error, refusal": "no wrong value comes",
                     "duplicate": _SECOND, "close:request": "no reply comes",
                     "damage, stored:zeroed, stored:torn, stored:flipped":
                     "without the capability \"integrity\": only a checksum shows it"},
    "honest-error": {"harmless, late, lie, damage, nil": "nothing has failed",
                     "insert:*, duplicate": "the store was acknowledged",
                     "close:request": "whether it was stored is in doubt, and no reply said"},
    "lookup-coherent": {"everything on the wire": _ONCE},
    "key-per-rank": {"everything on the wire": _ONCE},
    "keys-separate": {"everything on the wire": _ONCE, "salt, adapter": "without the capability of that name"},
    "cancel-safe": {"all but late": "a read can be given up while its reply is late, and only then is any left over",
                    "everything": "where the adapter's `abandons` is \"never\""},
    "sync-from-any-thread": {"everything on the wire": "threads are what disturbs here"},
    "close-resolves": {"all but stall": "nothing would be in flight when the connector is closed"},
    "leak-free": {"all but close, silence, error:LOADING, unknown-type, nil": "one of each kind, at every reply"},
    "linearizable": {"harmless, garbage, lie, damage, nil, error, refusal": "what is stored is not in doubt then"},
    "auth-fails-loud": {"everything on the wire": "the password is what is wrong here"},
}
"""For each rule, the groups and ids of disturbances that it is not tried under, and the reason."""
