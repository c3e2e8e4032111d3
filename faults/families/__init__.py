"""The families of faults that the proxy can do, one file each; a new one is added to `FAMILIES`.

`ending` and `quiet` are no families: two each are made from them.
"""

from kvproof.faults.families.bandwidth import Bandwidth
from kvproof.faults.families.blank import Blank
from kvproof.faults.families.close import Close
from kvproof.faults.families.coalesce import Coalesce
from kvproof.faults.families.delay import Delay
from kvproof.faults.families.drip import Drip
from kvproof.faults.families.duplicate import Duplicate
from kvproof.faults.families.empty import Empty
from kvproof.faults.families.error import Error
from kvproof.faults.families.flip import Flip
from kvproof.faults.families.half_open import HalfOpen
from kvproof.faults.families.hold import Hold
from kvproof.faults.families.huge import Huge
from kvproof.faults.families.insert import Insert
from kvproof.faults.families.nil import Nil
from kvproof.faults.families.refuse import Refuse
from kvproof.faults.families.reset import Reset
from kvproof.faults.families.silence import Silence
from kvproof.faults.families.split import Split
from kvproof.faults.families.truncate import Truncate
from kvproof.faults.families.unknown_type import UnknownType
from kvproof.faults.families.wrong_length import WrongLength
from kvproof.faults.families.wrong_type import WrongType
from kvproof.faults.fault import Fault

FAMILIES: dict[str, type[Fault]] = {
    family.kind: family for family in (
        Bandwidth, Blank, Close, Coalesce, Delay, Drip, Duplicate, Empty, Error, Flip, HalfOpen, Hold, Huge, Insert,
        Nil, Refuse, Reset, Silence, Split, Truncate, UnknownType, WrongLength, WrongType)}
"""Every family by the word that names it in a schedule."""

__all__ = [
    "FAMILIES", "Bandwidth", "Blank", "Close", "Coalesce", "Delay", "Drip", "Duplicate", "Empty", "Error", "Fault",
    "Flip", "HalfOpen", "Hold", "Huge", "Insert", "Nil", "Refuse", "Reset", "Silence", "Split", "Truncate",
    "UnknownType", "WrongLength", "WrongType",
]
