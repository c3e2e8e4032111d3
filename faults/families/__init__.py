"""The families of faults that the proxy can do, one file each; a new one is added to `FAMILIES`."""

from kvproof.faults.families.hold import Hold
from kvproof.faults.fault import Fault

FAMILIES: dict[str, type[Fault]] = {family.kind: family for family in (Hold,)}
"""Every family by the word that names it in a schedule."""
