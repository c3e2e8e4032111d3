"""The contract: one file a rule, each a function over a connector that is opened for it.

`pytest --pyargs kvproof.rules --kvproof-connector NAME` tries them all on a connector.
"""

from kvproof.rules import (
    auth_fails_loud,
    batch_aligned,
    bounded_time,
    cancel_safe,
    close_resolves,
    honest_error,
    key_per_rank,
    keys_separate,
    leak_free,
    linearizable,
    lookup_coherent,
    miss_is_miss,
    no_cross_talk,
    no_stale_hit,
    prefix_count,
    recovers,
    round_trip,
    sync_from_any_thread,
)
from kvproof.rules.rule import Rule

RULES: dict[str, Rule] = {module.RULE.id: module.RULE for module in (
    round_trip, miss_is_miss, batch_aligned, prefix_count, bounded_time, recovers, no_cross_talk, no_stale_hit,
    honest_error, lookup_coherent, key_per_rank, keys_separate, cancel_safe, sync_from_any_thread, close_resolves,
    leak_free, linearizable, auth_fails_loud)}
"""Every rule by its id, in the order of the contract."""

__all__ = ["RULES", "Rule"]
