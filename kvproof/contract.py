"""Every rule of the contract by its id, with what it claims: over one connector, and over a world of ranks."""

from __future__ import annotations


def claims() -> dict[str, str]:
    """Return what each rule says, in the order of the contract; those only over a world of ranks come last."""
    from kvproof.rules import RULES

    return {rule.id: rule.claim for rule in RULES.values()} | of_ranks()


def of_ranks() -> dict[str, str]:
    """Return what each rule says that there is over a world of ranks only."""
    from kvproof.rules import RULES

    return {rule: claim for rule, claim in of_worlds().items() if rule not in RULES}


def of_worlds() -> dict[str, str]:
    """Return what each rule over a world of ranks says; some have the name of one over a client."""
    from kvproof.ranks.rules import RULES

    return {rule.id: rule.claim for rule in RULES.values()}
