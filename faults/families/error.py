"""Error: the server refuses, in its own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvproof.faults.families.replace import Replace
from kvproof.faults.fault import is_text

TEXTS: dict[str, str] = {
    "LOADING": "LOADING Valkey is loading the dataset in memory",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "NOAUTH": "NOAUTH Authentication required.",
    "WRONGPASS": "WRONGPASS invalid username-password pair or user is disabled.",
    "NOPERM": "NOPERM User default has no permissions to run the 'get' command",
    "MOVED": "MOVED 3999 127.0.0.1:6381",
    "ASK": "ASK 3999 127.0.0.1:6381",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "READONLY": "READONLY You can't write against a read only replica.",
    "BUSY": "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MISCONF": "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk. "
               "Commands that may modify the data set are disabled, because this instance is configured to report "
               "errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the "
               "Valkey logs for details about the RDB error.",
    "CLUSTERDOWN": "CLUSTERDOWN Hash slot not served",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "maxclients": "ERR max number of clients reached",
    "unknown": "ERR unknown command 'GET', with args beginning with: ",
}
"""The errors by name, each with the text that Valkey gives."""
_BY_NAME = {name.upper(): text for name, text in TEXTS.items()}


LONGEST = 16_384
"""Characters in a text of one's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Replace):
    """Give an error in place of the reply: one of `TEXTS` by name, in any case, or `text` for any other.

    With neither it is LOADING.
    """

    kind: ClassVar[str] = "error"

    code: str | None = None
    text: str | None = None

    def check(self) -> None:
        """Check the error."""
        fits = self.code is None or (isinstance(self.code, str) and self.code.upper() in _BY_NAME)
        self.require("code", fits, f"null, or one of {', '.join(TEXTS)}")
        self.require("code", self.code is None or self.text is None, "null where there is a text")
        fits = self.text is None or (
            is_text(self.text) and not set(self.text) & {"\r", "\n"} and len(self.text) <= LONGEST)
        self.require("text", fits, f"null, or one line of text, at most {LONGEST} characters")

    def instead(self) -> bytes:
        """Return the error."""
        text = self.text if self.text is not None else _BY_NAME[(self.code or "LOADING").upper()]
        return b"-%b\r\n" % text.encode("utf-8", "surrogateescape")
