"""Campaigns as their users run them: what is found, what is kept when one is ended, and what is made of it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvproof.campaigns.journal import parsed
from kvproof.faults.servers import valkey
from tests.campaigning import begun, findings, load, records, run, shrunk, wait_for

BUG = "tests.hasty:Hasty"
"""Takes what it has stored once to be there for ever."""
RULE = "lookup-coherent"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign that has found a bug, with all that it writes."""
    directory = tmp_path_factory.mktemp("campaign")
    done = run(directory / "dir", "-c", BUG, "--for", "10s", *(
        word for what in ("json", "junit", "html", "digest") for word in (f"--{what}", str(directory / what))))
    assert done.returncode == 1, done.stdout + done.stderr
    (directory / "stdout").write_text(done.stdout)
    return directory


def test_a_bug_is_found_as_one_finding_with_the_least_case(found: Path) -> None:
    [finding] = findings(found / "dir")
    assert (finding.shown["rule"], finding.size, finding.rate, finding.known) == (RULE, 0, 1.0, False)
    case = finding.shown["case"]
    assert [step["do"] for step in case["steps"]] == ["put", "evict", "read"]
    assert (case["steps"][2]["how"], case["place"], len(case["schedules"])) == ("exists", {}, 1)


def test_what_is_written_says_the_same(found: Path) -> None:
    [finding] = findings(found / "dir")
    said = (found / "stdout").read_text()
    assert f"kvproof replay {found / 'dir' / 'findings' / finding.id}.json" in said
    [row] = load(found / "json")["cells"]
    assert (row["rule"], row["verdict"], row["known"]) == (RULE, "fail", False)
    [case] = ElementTree.parse(found / "junit").iter("testcase")
    failure = case.find("failure")
    assert failure is not None
    assert "kvproof replay" in str(failure.text)
    assert f"| `{finding.id}` | {RULE} |" in (found / "digest").read_text()
    assert finding.shown["explain"] in (found / "html").read_text()


def test_a_finding_is_replayed_and_made_a_test(found: Path, tmp_path: Path) -> None:
    [path] = (found / "dir" / "findings").glob("*.json")
    again = subprocess.run([sys.executable, "-m", "kvproof", "replay", str(path)], capture_output=True, text=True,
                           timeout=60, check=False)
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"{path.stem}: 3 of 3 times" in again.stdout
    module = tmp_path / "test_found.py"
    subprocess.run([sys.executable, "-m", "kvproof", "replay", str(path), "--pytest", str(module)], timeout=60,
                   check=True)
    failed = as_test(module)
    assert failed.returncode == 1, failed.stdout
    assert f"{RULE}: exists of c0a1 was a hit, and it was deleted" in failed.stdout
    module.write_text(module.read_text().replace(repr(BUG), "'reference'"))
    passed = as_test(module)
    assert passed.returncode == 0, passed.stdout


def as_test(module: Path) -> subprocess.CompletedProcess[str]:
    """Run a test module somewhere else."""
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(module)],
                          capture_output=True, text=True, timeout=120, check=False, cwd=module.parent,
                          env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])})


def test_nothing_is_found_in_the_reference(tmp_path: Path) -> None:
    done = run(tmp_path / "dir", "-c", "reference", "--for", "8s", "--workers", "2")
    assert done.returncode == 0, done.stdout
    assert findings(tmp_path / "dir") == []
    kept = [record for record in records(tmp_path / "dir") if record["record"] == "kept"]
    assert len(kept) > 20
    assert len({record["worker"] for record in kept}) == 2


def test_a_campaign_that_is_killed_has_lost_nothing_and_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "dir"
    running = begun(directory, "-c", BUG, "--for", "10m")
    try:
        wait_for(shrunk(directory))
    finally:
        running.send_signal(signal.SIGKILL)
        running.communicate(timeout=30)
    before = records(directory)
    refused = run(directory, "-c", BUG, "--for", "5s")
    assert (refused.returncode, "--resume" in refused.stderr) == (2, True), refused.stderr
    # Whatever has it still is a worker that has not seen yet that nobody drives it.
    done = run(directory, "--resume", "--for", "5s")
    assert done.returncode == 1, done.stdout + done.stderr
    after = records(directory)
    assert after[: len(before)] == before
    assert [each.shown["rule"] for each in findings(directory)] == [RULE]
    other = run(directory, "--resume", "-c", "reference", "--for", "5s")
    assert (other.returncode, "is a campaign on" in other.stderr) == (2, True)


def test_an_interrupted_campaign_writes_what_it_knows(tmp_path: Path) -> None:
    directory = tmp_path / "dir"
    running = begun(directory, "-c", BUG, "--for", "10m", "--digest", str(tmp_path / "digest"))
    wait_for(shrunk(directory))
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 1, said
    assert RULE in (tmp_path / "digest").read_text()
    assert records(directory)[-1]["record"] == "counted"


def test_the_page_is_drawn_from_the_journal_at_any_moment(found: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    subprocess.run([sys.executable, "-m", "kvproof", "report", str(found / "dir"), "--html", str(page)], timeout=60,
                   check=True)
    [finding] = findings(found / "dir")
    assert finding.shown["explain"] in page.read_text()
    none = subprocess.run([sys.executable, "-m", "kvproof", "report", str(tmp_path), "--html", str(page)], timeout=60,
                          check=False, capture_output=True, text=True)
    assert (none.returncode, "expected the journal of a campaign" in none.stderr) == (2, True)


def test_a_full_disk_ends_a_campaign_in_one_line_and_it_goes_on_later(tmp_path: Path) -> None:
    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))

    words = [sys.executable, "-m", "kvproof", "fuzz", "--dir", str(tmp_path / "dir")]
    full = subprocess.run([*words, "-c", BUG, "--for", "60s"], capture_output=True, text=True, timeout=120, check=False,
                          preexec_fn=little)
    assert full.returncode == 2, full.stdout + full.stderr
    assert full.stderr.count("what was found before is kept: make room, and go on with --resume") == 1
    assert "Traceback" not in full.stderr
    before = records(tmp_path / "dir")
    assert len(before) > 10
    done = run(tmp_path / "dir", "--resume", "--for", "5s")
    assert done.returncode in (0, 1), done.stderr
    assert records(tmp_path / "dir")[: len(before)] == before


def test_a_corpus_that_goes_away_is_told_and_a_line_that_is_damaged(tmp_path: Path) -> None:
    with valkey() as server:
        running = begun(tmp_path / "dir", "-c", "reference", "--for", "12s", "--corpus",
                        f"redis://127.0.0.1:{server.port}")
        wait_for(lambda: any(record["record"] == "kept" for record in records(tmp_path / "dir")))
    said, complaints = running.communicate(timeout=60)
    assert running.returncode == 0, said + complaints
    assert "goes on without it" in complaints
    with (tmp_path / "dir" / "journal.jsonl").open("ab") as file:
        file.write(b"not a record\n")
    before = records_with_damage(tmp_path / "dir")
    done = run(tmp_path / "dir", "--resume", "--for", "3s")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the rest is kept") == 1
    assert len(before) > 10


def records_with_damage(directory: Path) -> list[dict[str, object]]:
    found, complaints = parsed((directory / "journal.jsonl").read_bytes(), directory)
    assert len(complaints) == 1
    return found


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "dir"
    running = begun(directory, "-c", "reference", "--for", "15s")
    wait_for(lambda: any(record["record"] == "kept" for record in records(directory)))
    [worker] = [int(pid) for pid in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
                if b"kvproof.campaigns.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: any(record["record"] == "kept" and record["worker"] == 2 for record in records(directory)))
    said, complaints = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert "worker 1" in complaints
    assert "another one goes on" in complaints


def test_what_one_campaign_has_kept_another_begins_with(tmp_path: Path) -> None:
    for name in ("one", "other"):
        done = run(tmp_path / name, "-c", "reference", "--for", "5s", "--corpus", str(tmp_path / "corpus"))
        assert done.returncode == 0, done.stdout + done.stderr
    shared = [load(path).get("case") for path in (tmp_path / "corpus" / "cases").glob("*.json")]
    kept = {name: [record["case"] for record in records(tmp_path / name) if record["record"] == "kept"]
            for name in ("one", "other")}
    assert all(case in shared for case in kept["one"])
    # What the first has seen is nothing new to the second, so that it keeps less.
    assert 0 < len(kept["other"]) < len(kept["one"])


def test_what_one_campaign_has_found_another_has_too(found: Path, tmp_path: Path) -> None:
    with valkey() as server:
        where = f"redis://127.0.0.1:{server.port}"
        for name in ("one", "other"):
            if name == "one":
                shutil.copytree(found / "dir", tmp_path / name)
            # Long enough to exchange, and too short to find it: the second is told.
            done = run(tmp_path / name, *(["--resume"] if name == "one" else ["-c", BUG, "--seed", "1"]), "--for", "1s",
                       "--corpus", where)
            assert done.returncode == 1, done.stdout + done.stderr
    [one], [other] = findings(tmp_path / "one"), findings(tmp_path / "other")
    assert (one.id, one.shown["case"]) == (other.id, other.shown["case"])
    assert (tmp_path / "other" / "findings" / f"{one.id}.json").exists()


@pytest.mark.parametrize(("words", "says"), [
    (("-c", "nobody"), "nobody"),
    ((), "name a connector with -c"),
    (("-c", "reference", "--for", "soon"), "90s, 10m or 8h"),
    (("-c", "reference", "--corpus", "redis://127.0.0.1:1"), "leave --corpus out"),
    (("-c", "reference", "--on", "mars"), "expected ray"),
    (("-c", "reference", "--ranks", "2"), "none of reference has ranks"),
    (("-c", "sharded-reference", "--ranks", "65"), "a number from 1 to 64"),
    (("-c", "nothing:Here", "--for", "3s"), "nothing"),
    (("--decoder", "--server", "redis://127.0.0.1:1"), "decoder has no server"),
    (("--decoder", "--corpus", ""), "expected a directory"),
    (("--decoder", "--corpus", "redis://[::1"), "expected redis://HOST:PORT"),
    (("--decoder", "--known", "/nowhere"), "/nowhere"),
    (("-c", "reference", "--for", "3s", "--server", "redis://127.0.0.1:1"), "127.0.0.1:1"),
    (("--resume",), "holds no campaign"),
], ids=str)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = run(tmp_path / "dir", *words)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dir").exists()


def test_a_connector_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    (tmp_path / "closed.py").write_text(
        "from kvproof.connectors.reference import Reference\n\n\nclass Closed(Reference):\n    name = 'closed'\n\n"
        "    def __init__(self, place):\n        raise ConnectionError('closed today')\n")
    words = ["fuzz", "--dir", str(tmp_path / "dir"), "-c", "closed:Closed", "--for", "30s"]
    done = subprocess.run(
        [sys.executable, "-m", "kvproof", *words],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert "closed today" in done.stderr
    assert not (tmp_path / "dir" / "journal.jsonl").exists(), "it may be tried again under the same name"


def test_a_bug_that_was_mended_is_gone_when_the_campaign_goes_on(tmp_path: Path) -> None:
    bad = Path(__file__).with_name("hasty.py").read_text()
    (tmp_path / "mended.py").write_text(bad)
    words = [sys.executable, "-m", "kvproof", "fuzz", "--dir", str(tmp_path / "dir")]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[1]}"}

    def fuzz(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, *more], capture_output=True, text=True, timeout=120, check=False,
                              env=environment)

    found = fuzz("-c", "mended:Hasty", "--for", "8s", "--corpus", str(tmp_path / "corpus"))
    assert found.returncode == 1, found.stdout + found.stderr
    (tmp_path / "mended.py").write_text(
        "from kvproof.connectors.reference import Reference\n\n\nclass Hasty(Reference):\n    name = 'hasty'\n")
    again = fuzz("--resume", "--for", "4s")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 gone" in again.stdout
    assert list((tmp_path / "dir" / "findings").iterdir()) == []
    elsewhere = subprocess.run([*words[:4], "--dir", str(tmp_path / "other"), "-c", "mended:Hasty", "--for", "6s",
                                "--corpus", str(tmp_path / "corpus")], capture_output=True, text=True, timeout=120,
                               check=False, env=environment)
    assert elsewhere.returncode == 0, elsewhere.stdout + elsewhere.stderr
