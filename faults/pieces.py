"""The bytes of one frame, in the pieces in which they come."""

from __future__ import annotations

from collections.abc import AsyncIterator

Piece = bytes | memoryview


class Pieces:
    """An asynchronous iterator over pieces, which can be cut at any byte.

    A piece is good until the next one is asked for: it may lie in a buffer that is used again.
    """

    def __init__(self, source: AsyncIterator[Piece]) -> None:
        """Begin at the first byte of the frame."""
        self._source = source
        self._kept: Piece = b""

    def __aiter__(self) -> Pieces:
        """Return the pieces themselves."""
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece, which is never empty."""
        piece, self._kept = self._kept, b""
        while not piece:
            piece = await anext(self._source)
        return piece

    def first(self, count: int) -> First:
        """Return an iterator over the next `count` bytes, fewer when the frame ends before them."""
        return First(self, count)

    def put_back(self, piece: Piece) -> None:
        """Let these bytes be the next ones; at most those that were taken last."""
        self._kept = piece

    async def more(self) -> bool:
        """Whether the frame has another byte; waits until that is known."""
        if not self._kept:
            self._kept = await anext(self, b"")
        return bool(self._kept)

    async def line(self) -> bytes:
        """Take the next bytes up to a line feed, with it; at most up to the frame's end."""
        parts = []
        async for piece in self:
            end = bytes(piece).find(b"\n") + 1
            if end:
                self.put_back(piece[end:])
                parts.append(bytes(piece[:end]))
                break
            parts.append(bytes(piece))
        return b"".join(parts)

    async def whole(self) -> bytes:
        """Take all that is left, in one."""
        return b"".join([bytes(piece) async for piece in self])

    async def drop(self) -> int:
        """Take all that is left and forget it; return how many bytes it was."""
        return sum([len(piece) async for piece in self])


class First:
    """The next so many bytes of `Pieces`."""

    def __init__(self, pieces: Pieces, count: int) -> None:
        """Take nothing yet."""
        self._pieces, self._left = pieces, count

    def __aiter__(self) -> First:
        """Return the iterator itself."""
        return self

    async def __anext__(self) -> Piece:
        """Return the next piece, which is never empty."""
        if self._left <= 0:
            raise StopAsyncIteration
        piece = await anext(self._pieces)
        if len(piece) > self._left:
            self._pieces.put_back(piece[self._left :])
            piece = piece[: self._left]
        self._left -= len(piece)
        return piece
