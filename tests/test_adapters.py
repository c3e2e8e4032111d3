"""The adapters of real clients on a real Valkey: what they store and read, and the gaps they name."""

from __future__ import annotations

import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproof import connectors
from kvproof.connectors.adapter import Adapter, Cancelled, Endpoint, Failed, Hit, Miss, Outcome, Place, Read
from kvproof.faults import servers
from kvproof.faults.gates import Gap, PlaceGone, pause_before
from kvproof.faults.servers import Server
from kvproof.models.payloads import POISON, encode, identify
from kvproof.runner import Returned, child
from kvproof.runner.forks import Forks

LMCACHE = ["lmcache-resp", "lmcache-redis", "lmcache-valkey"]
L2, FILES = "lmcache-l2-resp", "lmcache-fs"
REDIS = ["redis-py", "redis-py-asyncio", "valkey-py"]
CLIENTS = [*REDIS, "valkey-glide-sync", "coredis"]
ENGINES = ["lmcache-engine-resp", "lmcache-engine-redis", "lmcache-engine-valkey"]
EVERY = [*LMCACHE, *ENGINES, L2, FILES, *CLIENTS]
NIL_GET = ("lmcache-resp", L2)
"""Those whose native client never answers a GET of an absent key, or calls it a hit."""
SIZES = (2, 6, 16, 128, 1024)
REAL_CHUNK = 12_390_400  # 256 tokens (facts: 1)
NATIVE = {"RESPClient.exists_sync", "RESPClient.batch_exists_sync", "RESPClient.get_sync", "RESPClient.set_sync",
          "RemoteBackend.batched_contains"}


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """The private directory of a connector that keeps its chunks in files."""
    return str(tmp_path)


@pytest.fixture(scope="module")
def endpoint(server: Server) -> Endpoint:
    """Where the server listens."""
    return Endpoint(server.host, server.port)


def adapter_class(name: str) -> type[Adapter]:
    """Import an adapter, or skip the test where its client is not installed."""
    try:
        kind = child.adapter_class(connectors.find(name).adapter)
    except connectors.NotInstalled as error:
        pytest.skip(str(error))
    for module in kind.preload:
        importlib.import_module(module)
    return kind


def apart(scenario: Callable[[], Any], deadline: float = 20.0) -> Any:
    """Run `scenario` in a forked child and return its result, because LMCache's connectors cannot be closed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = (True, scenario())
        except BaseException as error:
            answer = (False, f"{type(error).__name__}: {error}")
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        try:
            assert select.select([pipe], [], [], deadline)[0], f"the scenario gave no result within {deadline} s"
            good, result = pickle.loads(pipe.read())
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert good, result
    return result


def read_all(adapter: Adapter, read: Read, chunks: list[str], size: int) -> tuple[list[Outcome], list[bytearray]]:
    """Read `chunks` into poisoned buffers, in one call if the read is a batch."""
    buffers = [bytearray([POISON]) * size if read.payload else bytearray() for _ in chunks]
    pairs = [(adapter.place.key(chunk), memoryview(buffer)) for chunk, buffer in zip(chunks, buffers, strict=True)]
    with adapter.masked():
        if read.batch:
            return adapter.read(read, pairs), buffers
        return [adapter.read(read, [pair])[0] for pair in pairs], buffers


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_what_was_stored_is_read_back_whole_by_every_read(
    name: str, replicated: bool, endpoint: Endpoint, directory: str
) -> None:
    kind = adapter_class(name)

    def scenario() -> list[str]:
        wrong = []
        sizes = (*SIZES, *([] if replicated else [REAL_CHUNK]))
        for size in (size for size in sizes if size >= kind.payload.smallest and size % kind.payload.step == 0):
            place = Place(endpoint, size, replicated=replicated, model=f"whole-{name}-{size}", connections=2, timeout=5,
                          directory=directory)
            adapter = kind(place)
            payloads = {chunk: encode(chunk, 1, size) for chunk in ("00a0", "00a1")}
            with adapter.masked():
                stored = adapter.put([(place.key(chunk), data) for chunk, data in payloads.items()])
            if stored != [Hit(), Hit()]:
                wrong.append(f"put of {size} bytes: {stored}")
            for read in adapter.reads:
                outcomes, buffers = read_all(adapter, read, list(payloads), size)
                if outcomes != [Hit(), Hit()]:
                    wrong.append(f"{read.name} of {size} bytes: {outcomes}")
                if read.payload and [bytes(buffer) for buffer in buffers] != list(payloads.values()):
                    held = [identify(buffer, [(chunk, 1) for chunk in payloads]) for buffer in buffers]
                    wrong.append(f"{read.name} of {size} bytes: {held}")
        return wrong

    assert apart(scenario) == [], f"{name}: every read of stored chunks must be a hit with the bytes that were put"


@pytest.mark.parametrize("name", EVERY)
def test_an_absent_chunk_is_a_miss_and_its_buffer_untouched(name: str, endpoint: Endpoint, directory: str) -> None:
    kind = adapter_class(name)

    def scenario() -> list[str]:
        adapter, wrong = kind(Place(endpoint, 1024, model="absent", directory=directory)), []
        for read in adapter.reads:
            if name in NIL_GET and read.payload:
                continue
            outcomes, buffers = read_all(adapter, read, ["0bad"], 1024)
            if outcomes != [Miss()] or set(buffers[0]) - {POISON}:
                wrong.append(f"{read.name}: {outcomes} {bytes(buffers[0][:8]).hex()}")
        return wrong

    assert apart(scenario) == [], f"{name}: a chunk that nobody stored must be a miss"


def test_a_hit_that_filled_nothing_shows_the_poison(endpoint: Endpoint) -> None:
    kind = adapter_class("lmcache-resp")

    def scenario() -> tuple[list[Outcome], str]:
        adapter = kind(Place(endpoint, 16, model="unfilled"))
        get = next(read for read in adapter.reads if read.name == "get_blocking")
        buffer = bytearray(16)
        outcomes = adapter.read(get, [(adapter.place.key("0bad"), memoryview(buffer))])
        return outcomes, identify(buffer, []).whose

    # nil-get: for a length of two digits the 5 bytes of a nil are taken for the header of a hit.
    assert apart(scenario) == ([Hit()], "poison")


@pytest.mark.parametrize("name", EVERY)
def test_a_hole_in_a_batch_ends_counts_and_keeps_places(name: str, endpoint: Endpoint, directory: str) -> None:
    kind, size = adapter_class(name), 1024
    prefix, holes = [Hit(), Miss(), Miss()], [Hit(), Miss(), Hit()]
    expected = {
        "batched_contains": prefix, "batched_async_contains": prefix, "batched_exists": prefix,
        "lookup": holes if name == L2 else prefix, "retrieve": prefix,
        "batched_get_blocking": holes, "mget": holes, "batched_get_non_blocking": prefix,
    }
    # RedisConnector leaves out what is missing: the third chunk's payload arrives as the second's (LMCache 5153).
    closes_up = name == "lmcache-redis"
    if closes_up:
        expected["batched_get_non_blocking"] = [Hit(), Hit(), Miss()]

    def scenario() -> dict[str, tuple[list[Outcome], list[str]]]:
        adapter, chunks = kind(Place(endpoint, size, model=f"hole-{name}", directory=directory)), ["00", "01", "02"]
        with adapter.masked():
            adapter.put([(adapter.place.key(chunk), encode(chunk, 1, size)) for chunk in ("00", "02")])
        seen = {}
        for read in adapter.reads:
            if read.batch and not (name in NIL_GET and read.payload):
                outcomes, buffers = read_all(adapter, read, chunks, size)
                whose = [identify(buffer, [(chunk, 1) for chunk in chunks]).whose for buffer in buffers if buffer]
                seen[read.name] = (outcomes, whose)
        return seen

    seen = apart(scenario)
    assert seen, "there must be a batched read to look at"
    for read, (outcomes, whose) in seen.items():
        assert outcomes == expected[read], f"{name} {read}: expected {expected[read]}, got {outcomes}"
        if read == "batched_get_non_blocking" and closes_up:
            assert whose == ["00 version 1", "02 version 1", "poison"], f"{name} {read} delivered {whose}"
        for outcome, chunk, content in zip(outcomes, ("00", "01", "02"), whose, strict=False):
            if not (read == "batched_get_non_blocking" and closes_up):
                want = f"{chunk} version 1" if outcome == Hit() else "poison"
                assert content == want, f"{name} {read} chunk {chunk}: expected {want}, got {content}"


@pytest.mark.parametrize("name", EVERY)
def test_a_replicated_worker_finds_what_worker_0_stored_and_stores_nothing(
    name: str, endpoint: Endpoint, directory: str
) -> None:
    kind, size = adapter_class(name), 1024

    def scenario() -> tuple[list[Outcome], dict[str, Outcome]]:
        place = Place(endpoint, size, world_size=2, replicated=True, model=f"mla-{name}", directory=directory)
        workers = [kind(replace(place, rank=rank)) for rank in (0, 1)]
        stored = [worker.put([(worker.place.key("0c"), encode("0c", 1, size))])[0] for worker in workers]
        # On lmcache-resp the last read's wrong key is absent, and nil-get makes it wait for ever.
        hangs = ("lmcache-resp", "batched_get_non_blocking")
        return stored, {
            read.name: read_all(workers[1], read, ["0c"], size)[0][0] for read in workers[1].reads
            if (name, read.name) != hangs
        }

    stored, found = apart(scenario)
    assert stored == [Hit(), Miss()], f"{name}: worker 0 stores, worker 1 does not; got {stored}"
    lost = [read for read, outcome in found.items() if outcome != Hit()]
    expected = ["batched_get_non_blocking"] if name in ("lmcache-redis", "lmcache-valkey", FILES) else []
    assert lost == expected, f"{name}: worker 1 missed worker 0's chunk on {lost}, expected on {expected}"


def test_a_files_name_is_the_chunks(endpoint: Endpoint, directory: str) -> None:
    kind = adapter_class(FILES)

    def scenario() -> tuple[str, ...]:
        adapter = kind(Place(endpoint, 16, model="names/of", directory=directory))
        assert adapter.put([(adapter.place.key("00ff"), encode("00ff", 1, 16))]) == [Hit()]
        return adapter.wire_keys(adapter.place.key("00ff"))  # type: ignore[attr-defined,no-any-return]  # as below

    assert apart(scenario) == tuple(file.name for file in Path(directory).iterdir())


def test_files_without_a_directory_of_their_own_are_refused(endpoint: Endpoint) -> None:
    with pytest.raises(ValueError, match="needs a directory"):
        adapter_class(FILES)(Place(endpoint, 16))


@pytest.mark.parametrize("name", [name for name in EVERY if name != FILES])
def test_wire_keys_are_what_the_server_holds(name: str, endpoint: Endpoint) -> None:
    kind = adapter_class(name)

    def scenario() -> bytes:
        adapter = kind(Place(endpoint, 16, model=f"wire-{name}"))
        key = adapter.place.key("00ff")
        adapter.put([(key, encode("00ff", 1, 16))])
        names = adapter.wire_keys(key)  # type: ignore[attr-defined]  # not every adapter has it
        with socket.create_connection((endpoint.host, endpoint.port), 2.0) as server:
            server.sendall(f"EXISTS {' '.join(names)}\r\n".encode())
            return server.recv(64) + f"{len(names)}".encode()

    present, named = apart(scenario).split(b"\r\n")
    assert present == b":" + named, f"{name}: the server holds {present!r} of {named!r} names"


@pytest.mark.parametrize("name", CLIENTS)
def test_a_value_of_another_length_is_an_error_and_not_a_hit(name: str, endpoint: Endpoint) -> None:
    kind = adapter_class(name)

    def scenario() -> dict[str, tuple[list[Outcome], bytes]]:
        adapter = kind(Place(endpoint, 16, model="length"))
        adapter.put([(adapter.place.key("00"), b"x" * 15)])
        found = {read.name: read_all(adapter, read, ["00"], 16) for read in adapter.reads if read.payload}
        adapter.close()
        return {read: (outcomes, bytes(buffers[0])) for read, (outcomes, buffers) in found.items()}

    for read, (outcomes, buffer) in apart(scenario).items():
        assert outcomes == [Failed("15 bytes, expected 16")], f"{name} {read}: got {outcomes}"
        assert set(buffer) == {POISON}, f"{name} {read} wrote into the buffer"


@pytest.fixture
def own() -> Iterator[Server]:
    """A server for one test, which may stop it."""
    with servers.valkey() as started:
        yield started


@pytest.mark.parametrize("name", ["redis-py-asyncio", "coredis"])
def test_a_cancelled_asyncio_read_says_how_it_ended_while_the_loop_runs_on(name: str, own: Server) -> None:
    assert own.process is not None
    pid, endpoint = own.process.pid, Endpoint(own.host, own.port)
    kind = adapter_class(name)

    def scenario() -> tuple[object, list[Outcome]]:
        adapter = kind(Place(endpoint, 16, model="cancel", connections=2, timeout=5))
        chunk = [(adapter.place.key("00"), memoryview(bytearray(16)))]
        adapter.put([(adapter.place.key("00"), encode("00", 1, 16))])
        get = next(read for read in adapter.reads if read.name == "get")
        os.kill(pid, signal.SIGSTOP)
        try:
            ended = adapter.cancel_read(get, chunk, lambda: None)
        finally:
            os.kill(pid, signal.SIGCONT)
        between: list[Outcome] = []
        adapter.cancel_read(get, chunk, lambda: between.extend(read_all(adapter, get, ["00"], 16)[0]))
        adapter.close()
        return ended, between

    ended, between = apart(scenario, deadline=10.0)
    assert ended == Cancelled("CancelledError"), f"a GET whose reply was held ended as {ended!r}"
    assert between == [Hit()], f"another read during `when` must be served, got {between}"


@pytest.mark.parametrize("name", [L2, FILES, "valkey-py", "valkey-glide-sync", "coredis", "redis-py==4.5.3"])
def test_in_a_runner_it_opens_stores_reads_misses_and_closes(name: str, endpoint: Endpoint, directory: str) -> None:
    try:
        connector = connectors.find(name)
    except connectors.NotInstalled as error:
        pytest.skip(str(error))
    place = Place(endpoint, 1024, model=f"runner-{name}", directory=directory, timeout=2.0)
    with Forks() as forks, forks.runner(connector) as runner:

        def call(function: str, **arguments: Any) -> Any:
            answer = runner.call(f"kvproof.runner.calls:{function}", 5.0, **arguments)
            assert isinstance(answer, Returned), f"{name} {function} {arguments}: {answer}"
            return answer.value

        declared = call("describe")
        assert declared["version"] == connector.version
        opened = runner.open(place)
        assert isinstance(opened, Returned), f"{name} did not open: {opened}"
        known = [("00", 1), ("02", 1)]
        assert call("put", chunks=known) == ["hit", "hit"]
        for read in declared["reads"]:
            for chunks in ([["00", "02"], ["00", "01", "02"], ["01"]] if read["batch"] else [["00"], ["01"]]):
                if name in NIL_GET and read["payload"] and "01" in chunks:
                    continue
                said = call("read", read=read["name"], chunks=chunks, known=known)
                for chunk, found in zip(chunks, said, strict=True):
                    if chunk == "01":
                        assert found["outcome"] == "miss", f"{name} {read['name']} of {chunks}: {said}"
                    elif "01" not in chunks:
                        assert found["outcome"] == "hit", f"{name} {read['name']} of {chunks}: {said}"
                    if found["outcome"] == "hit" and read["payload"]:
                        assert found["holds"] == f"{chunk} version 1", f"{name} {read['name']} of {chunks}: {said}"
        assert call("close")["processes"] == []


class Forced:
    """A gap's call made in a thread of its own, with its completion delivered in the gap."""

    def __init__(self, gap: Gap, key: Any, data: bytes, hold: bool) -> None:
        """Start the call; `hold` keeps the hand-over back, otherwise the caller is paused before it waits."""
        self._gap, self._key, self._buffer, self._hold = gap, key, memoryview(bytearray(data)), hold
        self._watches: list[Any] = []
        self._result: list[Any] = []
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        with self._gap.watch(2.0 if self._hold else 0.0) as watch:
            self._watches.append(watch)
            if self._hold:
                self._result.append(self._gap.run(self._key, self._buffer))
                return
            with pause_before(self._gap.wait, lambda: watch.arrived(2.0)) as pause:
                result = self._gap.run(self._key, self._buffer)
            self._result.append(result if pause.reached else "never paused")

    def end(self, until: float) -> tuple[object, str | None]:
        """Return what the call returned, or "hang" when it had not by `until`, and the evidence."""
        self._thread.join(max(0.0, until - time.monotonic()))
        arrival = self._watches[0].arrived(1.0)
        return self._result[0] if self._result else "hang", arrival.words if arrival is not None else None


@pytest.mark.parametrize("hold", [True, False], ids=["held hand-over", "paused caller"])
@pytest.mark.parametrize("name", [*LMCACHE, L2, FILES, *REDIS])
def test_a_completion_in_the_gap_is_lost_only_by_the_native_client(
    name: str, hold: bool, endpoint: Endpoint, directory: str
) -> None:
    kind, size = adapter_class(name), 1024
    place = Place(endpoint, size, model=f"gap-{name}", directory=directory)
    data = encode("0e", 1, size)

    def scenario() -> dict[str, tuple[object, str | None]]:
        first = kind(place)
        first.put([(place.key("0e"), data)])
        adapters = [kind(place) for _ in first.gaps()]
        forced = {}
        for index, adapter in enumerate(adapters):
            gap = adapter.gaps()[index]
            forced[gap.call] = Forced(gap, place.key("0e"), data, hold)
            if name != "lmcache-resp" or gap.call not in NATIVE:
                # These watches stand in modules and classes: two at once would see each other's calls.
                forced[gap.call].end(time.monotonic() + 5.0)
        until = time.monotonic() + 1.5
        return {call: one.end(until) for call, one in forced.items()}

    ends = apart(scenario)
    assert ends, f"{name} names no gap"
    for call, (ended, evidence) in ends.items():
        expected = "hang" if name == "lmcache-resp" and call in NATIVE else Hit()
        assert ended == expected, f"{name} {call}: expected {expected}, got {ended}"
        assert evidence is not None, f"{name} {call}: nothing shows that the completion arrived in the gap"
        # The L2 adapter registers too late as well, but under a lock that whoever drained needs to go on.
        early = expected == "hang" or name == L2
        assert ("nobody had registered" in evidence) == early, f"{name} {call}: {evidence}"


def test_a_place_that_another_version_lacks_is_reported(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = adapter_class("redis-py")
    adapter = kind(Place(endpoint, 16))
    import redis

    monkeypatch.delattr(redis.Redis, "_send_command_parse_response")
    with pytest.raises(PlaceGone, match="has no _send_command_parse_response"):
        adapter.gaps()


@pytest.mark.parametrize("name", LMCACHE)
def test_half_a_second_stays_half_a_second(name: str, endpoint: Endpoint) -> None:
    kind = adapter_class(name)
    seconds = apart(lambda: kind(Place(endpoint, 16, timeout=0.5)).backend.config.blocking_timeout_secs)  # type: ignore[attr-defined]  # LMCache's
    assert seconds == 0.5, f"LMCache was told to wait {seconds} s, expected 0.5 s"


@pytest.mark.parametrize("name", [*LMCACHE, L2, *CLIENTS])
def test_a_server_that_is_not_there_is_an_error_without_the_password(name: str) -> None:
    kind = adapter_class(name)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        place = Place(Endpoint("127.0.0.1", unused.getsockname()[1], "s3cret"), 16)

        def scenario() -> str:
            try:
                return repr(kind(place).put([(place.key("00"), bytes(16))])[0])
            except Exception as error:
                return f"raised {error}"

        said = apart(scenario)
    # Some connect only when they are first used, and their constructors cannot know.
    assert said.startswith(("raised", "Failed")), f"{name} stored on a server that is not there: {said}"
    assert "s3cret" not in said, f"{name} shows the password: {said}"


def test_lmcache_imports_where_transformers_is_not_installed() -> None:
    adapter_class("lmcache-resp")
    code = ("import sys; sys.modules['transformers'] = None; import kvproof.connectors.lmcache_resp; "
            "print(sys.modules['transformers'].AutoConfig.__name__)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "Absent", done.stderr[-2000:]


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_the_paged_kv_cache_of_a_gpu_keeps_its_address_and_every_chunk_its_place(dtype: str, replicated: bool) -> None:
    # As LMCache's own connector on a GPU uses it: by the addresses of the first call, and the slots of each.
    torch = pytest.importorskip("torch")
    from kvproof.connectors.lmcache_engine import PagedKV
    from kvproof.connectors.lmcache_remote import metadata

    place = Place(Endpoint("127.0.0.1", 1), chunk_bytes=4096, dtype=dtype, replicated=replicated)
    paged = PagedKV(metadata(place), "cpu", replicated=replicated)
    address, tokens = paged.layers[0].data_ptr(), metadata(place).chunk_size
    planes = 1 if replicated else 2
    rows = paged.layers[0].view(planes, -1, 4096 // planes // tokens // paged.layers[0].element_size())
    for count in (3, 1):
        data = [bytearray(encode(f"{count}{index}", 7, 4096)) for index in range(count)]
        sent = [torch.frombuffer(chunk, dtype=torch.uint8) for chunk in data]
        slots = paged.fill(sent)
        for index, buffer in enumerate(sent):
            there = rows[:, slots[index * tokens : (index + 1) * tokens]]
            assert torch.equal(there.contiguous().view(torch.uint8).flatten(), buffer), "not where its slots say"
        back = [torch.full((4096,), POISON, dtype=torch.uint8) for _ in sent]
        paged.deliver(back)
        assert all(map(torch.equal, back, sent))
        assert paged.layers[0].data_ptr() == address
    with pytest.raises(ValueError, match="65 chunks in one call"):
        paged.fill([back[0]] * 65)
