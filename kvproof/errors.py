"""The errors a user can meet, one class a situation. The only module that every package may import."""

import os.path
import traceback


class KvproofError(Exception):
    """Base of all errors that kvproof raises on purpose.

    The message says what was given, what was expected and what to do, in one line; the command line prints it
    without a traceback and exits with 2.
    """


class UsageError(KvproofError):
    """The command or call asks for something that does not exist or does not fit. Correct the call.

    Its text is one line in which everything is printable, whatever name or file was given.
    """

    def __str__(self) -> str:
        """Return the text, a space for each letter that would be more than text to a terminal."""
        return "".join(letter if letter.isprintable() else " " for letter in super().__str__())


class NotInstalled(KvproofError):
    """A connector, server or tool is not installed. The message holds the exact command that installs it."""


class ServerFailed(KvproofError):
    """A server could not be started or is not what it claims to be. The message holds the end of its log."""


class ProxyFailed(KvproofError):
    """The fault proxy did not start, died, or was given a schedule that it cannot carry out."""


class DeadlineExceeded(KvproofError):
    """Something of ours (a server, a proxy, a supervisor) did not answer within its deadline."""


class RunnerFailed(KvproofError):
    """A runner could not be started for a reason that is not the connector's."""


class ProtocolError(KvproofError):
    """Bytes that are not RESP, or that exceed a configured limit. The connection cannot be used any further."""


def said(error: Exception) -> str:
    """Return an error in words: ours as they are, anything else with its type and place, since it is our mistake."""
    if isinstance(error, KvproofError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.name} in {os.path.basename(place.filename)}:{place.lineno})"
