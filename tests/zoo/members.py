"""Every wrong connector of the zoo, in the order of the rules."""

from __future__ import annotations

from tests.zoo import absence, batches, keys, passwords, replies, threads, values, waits, writes
from tests.zoo.wrong import Wrong

MEMBERS: tuple[type[Wrong], ...] = (
    values.TypedByFirstByte, values.SplitEnd, values.EmptyIsAbsent, values.ElementsOfTwoBytes, values.TakesNoOddSize,
    absence.NilIsHit, absence.ZeroIsPresent, absence.WaitsForAbsent,
    batches.HolesCloseUp, batches.HitsLead, batches.ErrorIsNoReply,
    batches.CountsHits, batches.LastHitLeads, batches.HoleCounts,
    waits.DripsProlong, waits.NoDeadlineInside, waits.ExpiryNeverSet, waits.AllocatesAnnounced,
    waits.DeadAfterTimeout, waits.PoolDrains, waits.BadBytesStay,
    replies.KeptAfterTimeout, replies.KeptAfterCancel, replies.StopsAtError,
    values.ChecksumUnread, values.ShortIsWhole, values.LongIsCut,
    writes.RefusedIsStored, writes.ErrorIsFinished,
    absence.PromisedIsThere, absence.VerdictStays, absence.KeptByLookup,
    keys.LookupAsksOwn, keys.AsyncAsksOwn, keys.AllAskZero,
    keys.NoAdapterInKey, keys.NoSaltInKey, keys.NoDtypeInKey, keys.KeyOfThisProcess, keys.JoinedBare,
    replies.WritesAfterCancel, replies.WritesAfterTimeout,
    threads.OneForAll, threads.OneStagingBuffer, threads.StrictTurns, threads.EarlyReturnKeepsLock,
    threads.CloseTellsNobody, threads.CloseHoldsLock,
    threads.SocketsStayOpen, threads.ThreadStays, threads.ProcessStays, threads.BuffersStay, threads.PoolShrinks,
    writes.OldVersions, writes.WritesBehind,
    passwords.DegradesSilently, passwords.NoAuthIsMiss, passwords.TellsPassword, passwords.LogsPassword,
)
