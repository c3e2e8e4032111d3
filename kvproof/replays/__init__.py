"""Historic bugs, replayed on a connector: each one forced at its exact place, none by editing the code under test."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.replays import cancel_cross_talk, lost_completion, nil_get, worker_key
from kvproof.replays.stage import Case, Replay, Stage

__all__ = ["REPLAYS", "Case", "Replay", "Stage"]

REPLAYS: Mapping[str, Replay] = {
    replay.bug: replay
    for replay in (lost_completion.REPLAY, nil_get.REPLAY, worker_key.REPLAY, cancel_cross_talk.REPLAY)
}
"""Every replay by the bug's name."""
