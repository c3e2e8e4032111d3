"""The canary finds what was planted in a start, keeps every process's output apart, and says which factor matters."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from kvproof.canary import factors
from kvproof.canary.words import tracebacks
from kvproof.errors import UsageError
from kvproof.faults.servers import free_port

_FILTERS = "from kvproof.canary import opens; raise SystemExit(not opens.stop_at())"
filtered = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", _FILTERS], check=False).returncode != 0,
    reason="not run: this system has no filters of seccomp, by which it is seen which files are opened")
START = Path(__file__).parent / "engines" / "start.py"


def canary(*words: str, what: str = "", environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(START), what] if what else []
    return subprocess.run([sys.executable, "-m", "kvproof", "canary", *words, "--", *command], capture_output=True,
                          text=True, timeout=90, check=False, env={**os.environ, **(environment or {})})


def seen(tmp_path: Path, *words: str, what: str, environment: dict[str, str] | None = None
         ) -> tuple[subprocess.CompletedProcess[str], Any]:
    done = canary("--json", str(tmp_path / "json"), *words, what=what, environment=environment)
    assert done.stderr == "", done.stderr
    return done, json.loads((tmp_path / "json").read_text())["runs"][0]


def test_a_child_that_a_signal_killed_is_the_cause_however_it_was_reaped(tmp_path: Path) -> None:
    done, run = seen(tmp_path, what="killed")
    assert done.returncode == 1
    assert run["cause"]["kind"] == "signal"
    assert run["cause"]["line"] == "killed by signal 9 (SIGKILL)"
    engine, child = run["processes"]
    assert (engine["exit_code"], engine["signal"], child["exit_code"], child["signal"]) == (1, None, None, 9)
    assert (child["parent"], f"process {child['pid']}" in run["cause"]["who"]) == (engine["pid"], True)
    assert done.stdout.startswith("root cause: killed by signal 9 (SIGKILL) (process ")


def test_what_a_start_ran_with_is_kept(tmp_path: Path) -> None:
    other = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    another = tmp_path / "python3.99"
    shutil.copy("/bin/echo", another)
    begins = f"import subprocess; [subprocess.run([each, '-c', '']) for each in ('{other}/bin/python', '{another}')]"
    done = subprocess.run([sys.executable, "-m", "kvproof", "canary", "--json", str(tmp_path / "json"), "--",
                           sys.executable, "-c", begins], capture_output=True, text=True, timeout=90, check=False,
                          env={**os.environ, "KVPROOF_IMAGE": "engine:1"})
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "json").read_text())["setting"]
    assert found["image"] == "engine:1"
    mine, others = (found["pythons"][str(path)] for path in (sys.executable, other / "bin" / "python"))
    assert mine["python"] == others["python"] == platform.python_version()
    assert mine["distributions"]["pytest"] == pytest.__version__
    assert "pytest" not in others["distributions"]
    assert found["pythons"][str(another)] == {"says": "it does not say what it has: JSONDecodeError"}


def test_a_crash_is_the_cause_with_its_signal(tmp_path: Path) -> None:
    _, run = seen(tmp_path, what="segfault")
    assert run["cause"]["line"] == "killed by signal 11 (SIGSEGV)"


def test_outputs_are_kept_apart(tmp_path: Path) -> None:
    done = canary("--outputs", str(tmp_path / "out"), "--json", str(tmp_path / "json"), what="killed")
    run = json.loads((tmp_path / "json").read_text())["runs"][0]
    engine, child = run["processes"]
    said = {each["pid"]: "".join(piece["text"] for piece in each["output"]) for each in run["processes"]}
    assert said[child["pid"]] == f"worker {child['pid']}: loading\n"
    assert said[engine["pid"]].splitlines()[0] == "engine: version 1.0, killed"
    assert {piece["stream"] for piece in engine["output"]} == {"stdout", "stderr"}
    files = sorted((tmp_path / "out").iterdir())
    assert {file.name for file in files} == {f"000-{engine['pid']}.txt", f"000-{child['pid']}.txt"}
    assert done.returncode == 1


def test_a_grandchilds_traceback_is_the_cause_whatever_its_parents_say(tmp_path: Path) -> None:
    done, run = seen(tmp_path, what="swallowed")
    assert done.returncode == 1
    assert run["cause"]["kind"] == "traceback"
    assert run["cause"]["line"] == "ValueError: block budget 3 is below what the connector needs"
    assert run["cause"]["place"].startswith("deep (start.py:")
    assert len(run["processes"]) == 3


def test_a_hang_is_stopped_and_says_where_it_was(tmp_path: Path) -> None:
    done, run = seen(tmp_path, "--within", "2", what="hang")
    assert (done.returncode, run["how"]) == (1, "hang")
    assert run["cause"]["line"] == "it neither served nor ended in time"
    assert run["cause"]["place"].startswith("wait_for_a_peer (start.py:")
    assert all(each["stopped"] and each["ended"] is not None for each in run["processes"])
    stacks = [each["stacks"][0] for each in run["processes"]]
    assert any("popen_fork" in frame for frame in stacks[0]), "the engine waits for its worker"
    assert stacks[1][0].startswith("wait_for_a_peer (start.py:")
    assert done.stdout.startswith("a hang: it neither served nor ended in time")
    for each in run["processes"]:
        assert not Path(f"/proc/{each['pid']}").exists()


def test_a_process_that_has_stopped_itself_hears_that_it_is_to_end(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "kvproof", "canary", "--within", "1", "--json", str(tmp_path / "json"),
                           "--", "sh", "-c", "kill -STOP $$; echo no"], capture_output=True, text=True, timeout=60,
                          check=False)
    [stopped] = json.loads((tmp_path / "json").read_text())["runs"][0]["processes"]
    assert (done.returncode, stopped["signal"], stopped["output"]) == (1, signal.SIGABRT, []), "and needs no SIGKILL"


def test_exit_0_without_service_fails_only_where_it_was_to_serve(tmp_path: Path) -> None:
    done, run = seen(tmp_path, "--ready", "serving on", what="exit 0")
    assert (done.returncode, run["cause"]["kind"]) == (1, "no service")
    done, run = seen(tmp_path, what="exit 0")
    assert (done.returncode, run["cause"]) == (0, None)


@filtered
def test_what_was_logged_before_the_start_is_no_cause_of_it_however_much_is_written_elsewhere(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("ERROR of yesterday\n")
    os.utime(log, (1e9, 1e9))
    done, run = seen(tmp_path, what="busy log", environment={"ENGINE_LOG": str(log)})
    assert done.returncode == 1
    assert run["logs"] == {str(log): "INFO stopping\n"}
    assert run["cause"]["kind"] == "exit code", run["cause"]


@pytest.mark.parametrize("what", ["log", pytest.param("closed log", marks=filtered)])
def test_an_error_that_is_only_in_a_log_file_is_found(what: str, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("ERROR of yesterday\n")
    done, run = seen(tmp_path, what=what, environment={"ENGINE_LOG": str(log)})
    assert done.returncode == 1
    assert (run["cause"]["kind"], run["cause"]["line"]) == ("log", "ERROR cannot allocate 3 GiB for KV blocks")
    assert str(log) in run["cause"]["who"]


@filtered
@pytest.mark.parametrize(("name", "named", "found"), [
    ("engine.log", False, True), ("logs/engine", False, True), ("engine.err", False, True), ("weights", False, False),
    ("weights", True, True)])
def test_a_file_that_is_written_and_closed_is_a_log_by_its_name_or_if_it_is_named(
    name: str, named: bool, found: bool, tmp_path: Path
) -> None:
    file = tmp_path / "here" / name
    file.parent.mkdir(parents=True)
    file.write_text("ERROR of yesterday, which is longer than what follows\n")
    for mode, begins in (("a", True), ("w", False)):
        code = f"import sys; open({str(file)!r}, {mode!r}).write('cannot allocate\\n'); sys.exit(3)"
        done, run = _run(tmp_path, *(["--log", str(file)] if named else []), "--", sys.executable, "-c", code)
        assert done.returncode == 1
        assert run["logs"] == ({str(file): "cannot allocate\n"} if found else {}), (mode, begins)


def _run(tmp_path: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], Any]:
    done = subprocess.run([sys.executable, "-m", "kvproof", "canary", "--json", str(tmp_path / "json"), *words],
                          capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path)
    return done, json.loads((tmp_path / "json").read_text())["runs"][0]


@filtered
def test_a_file_is_seen_however_it_is_named_and_opened(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    code = ("import os, sys\nat = os.open('there', os.O_RDONLY)\n"
            "os.write(os.open('one.log', os.O_WRONLY | os.O_CREAT, dir_fd=at), b'cannot one')\n"
            "os.chdir('there')\nopen('../two.log', 'x').write('cannot two')\nos.symlink('one.log', 'three')\n"
            "open('three', 'a').write(', nor this')\nsys.exit(3)")
    _, run = _run(tmp_path, "--", sys.executable, "-c", code)
    assert run["logs"] == {str(folder / "one.log"): "cannot one, nor this", str(tmp_path / "two.log"): "cannot two"}


def test_of_one_process_the_traceback_with_which_it_ended_is_the_cause(tmp_path: Path) -> None:
    code = """
import sys, traceback
try:
    import nothing_like_it
except ImportError:
    traceback.print_exc()
try:
    {}["blocks"]
except KeyError as error:
    raise ValueError("no blocks") from error
"""
    _, run = _run(tmp_path, "--", sys.executable, "-c", code)
    assert run["cause"]["line"] == "KeyError: 'blocks'", "of what came of one another the first"
    alive, run = _run(tmp_path, "--", sys.executable, "-c", code.partition("try:\n    {}")[0])
    assert (alive.returncode, run["cause"]) == (0, None)
    assert alive.stdout.splitlines()[1].startswith("but: ModuleNotFoundError: No module named 'nothing_like_it'")


def test_a_failure_that_a_pipe_hides_is_shown_although_the_command_says_that_all_is_well(tmp_path: Path) -> None:
    done, run = _run(tmp_path, "--", "sh", "-c", f"{sys.executable} -c 'raise ValueError(3)' 2>&1 | tee out.txt")
    assert (done.returncode, run["cause"]) == (0, None)
    assert "but: ValueError: 3" in done.stdout
    assert [sign["line"] for sign in run["signs"]] == ["ValueError: 3"]


def test_whose_output_its_parent_keeps_is_found_by_its_exit_code(tmp_path: Path) -> None:
    inner = "raise ValueError(3)"
    middle = (f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {inner!r}], "
              "capture_output=True).returncode)")
    outer = (f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {middle!r}], "
             "capture_output=True).returncode)")
    _, run = _run(tmp_path, "--", sys.executable, "-c", outer)
    first = run["processes"][-1]
    assert run["cause"]["line"] == ("exit code 1, and what it said, if anything, was not seen; 2 above it failed after "
                                    "it")
    assert str(first["pid"]) in run["cause"]["who"]


def test_where_a_hang_was_is_said_in_ones_own_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import queue\n\n\ndef wait_for_worker():\n    queue.Queue().get()\n\n\n"
                                      "wait_for_worker()\n")
    done, run = _run(tmp_path, "--within", "2", "--", sys.executable, "mine.py")
    assert run["cause"]["place"].startswith("wait_for_worker (mine.py:5), in wait (threading.py:")
    assert [frame.partition(" ")[0] for frame in run["processes"][0]["stacks"][0]] == [
        "wait", "get", "wait_for_worker", "<module>"]
    assert ": ended by the canary, 0 bytes of output" in done.stdout


@pytest.mark.parametrize("how", ["port", "text"])
def test_a_start_that_serves_is_seen_and_ended(how: str, tmp_path: Path) -> None:
    port = free_port()
    words = ["--port", str(port)] if how == "port" else ["--ready", "^serving$|\nserving"]
    done, run = seen(tmp_path, *words, "--within", "30", what="serves", environment={"PORT": str(port)})
    assert (done.returncode, run["how"], run["cause"]) == (0, "ready", None)
    assert run["ready"] < 20
    [engine] = run["processes"]
    assert (engine["stopped"], engine["signal"]) == (True, 15)


def test_a_factorial_finds_the_two_options_that_fail_together(tmp_path: Path) -> None:
    done = canary("--factor", "CONNECTOR=none,remote", "--factor", "BLOCKS=small,large", "--repeat", "2", "--json",
                  str(tmp_path / "json"), what="interaction")
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads((tmp_path / "json").read_text())
    assert len(found["runs"]) == 8
    failed = [run["levels"] for run in found["runs"] if run["cause"]]
    assert failed == [{"CONNECTOR": "remote", "BLOCKS": "large"}] * 2
    first = found["effects"][0]
    assert (first["factors"], first["size"]) == (["CONNECTOR", "BLOCKS"], 1.0)
    assert [each["size"] for each in found["effects"][1:]] == [0.5, 0.5]
    assert "CONNECTOR x BLOCKS        100%" in done.stdout
    assert "block budget 7 is below" in done.stdout


def test_effects_are_those_of_the_factor_that_matters() -> None:
    names = {"A": ("0", "1"), "B": ("x", "y", "z")}
    outcomes = [(levels, levels["A"] == "1") for levels in factors.combinations(names) for _ in range(3)]
    found = {effect.factors: effect.size for effect in factors.effects(names, outcomes)}
    assert found == {("A",): 1.0, ("B",): 0.0, ("A", "B"): 0.0}
    assert factors.placed(["run", "--a={A}", "{B}{B}"], {"A": "1", "B": "y"}) == ["run", "--a=1", "yy"]
    assert factors.unknown(["run", "--a={A}", "{C}{B} {}"], names) == ["{C}"]


@pytest.mark.parametrize("text", ["A", "A=", "A=a", "=a,b", "A=a,a", "a b=c,d"])
def test_what_is_no_factor_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=a,b"):
        factors.read(text)


@pytest.mark.parametrize(("words", "says"), [
    ([], "name the command after --"), (["--repeat", "0"], "--repeat 0"), (["--port", "70000"], "--port 70000"),
    (["--port", "0"], "--port 0"), (["--log", ""], "--log: expected"),
    (["--ready", "("], "expected a regular expression"), (["--factor", "A=a"], "expected NAME=a,b"),
    (["--factor", "A=a,b", "--factor", "A=c,d"], "a factor is given twice"),
])
def test_wrong_usage_is_said_in_a_line(words: list[str], says: str) -> None:
    done = canary(*words, what="exit 0" if words else "")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert says in done.stderr


def test_a_program_that_is_not_there_is_said_in_a_line() -> None:
    done = subprocess.run([sys.executable, "-m", "kvproof", "canary", "--", "/no/such/engine"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "/no/such/engine cannot be started: No such file or directory" in done.stderr


def test_tracebacks_in_logs_with_prefixes_are_read() -> None:
    text = ("(Core pid=12) Traceback (most recent call last):\n"
            '(Core pid=12)   File "/x/core.py", line 3, in start\n(Core pid=12)     raise KeyError(1)\n'
            "(Core pid=12) KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n"
            'Traceback (most recent call last):\n  File "/x/api.py", line 9, in run\n    raise RuntimeError\n'
            "RuntimeError: Engine core initialization failed\n")
    assert [(line, place) for line, place, _ in tracebacks(text)] == [
        ("KeyError: 1", "start (core.py:3)"), ("RuntimeError: Engine core initialization failed", "run (api.py:9)")]


def test_of_an_exception_group_each_part_is_read() -> None:
    def deep(what: str) -> None:
        raise ValueError(what)

    caught: list[Exception] = []
    for what in ("blocks", "ranks"):
        try:
            deep(what)
        except ValueError as error:
            caught.append(error)
    try:
        raise ExceptionGroup("two tasks", [caught[0], ExceptionGroup("one of them", caught[1:])])
    except ExceptionGroup as group:
        text = "".join(traceback.format_exception(group))
    assert [(line, place.partition(" ")[0]) for line, place, _ in tracebacks(text)] == [
        ("ValueError: blocks", "deep"), ("ValueError: ranks", "deep")]


def test_many_processes_and_much_output_are_followed(tmp_path: Path) -> None:
    code = """
import os, sys
for number in range(60):
    if not os.fork():
        sys.stdout.write(f"{number} " * 2000)
        sys.stdout.flush()
        os._exit(number % 7)
for _ in range(60):
    os.wait()
"""
    done = subprocess.run([sys.executable, "-m", "kvproof", "canary", "--json", str(tmp_path / "json"), "--",
                           sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    processes = json.loads((tmp_path / "json").read_text())["runs"][0]["processes"][1:]
    assert sorted(each["exit_code"] for each in processes) == sorted(number % 7 for number in range(60))
    said = sorted("".join(piece["text"] for piece in each["output"]) for each in processes)
    assert said == sorted(f"{number} " * 2000 for number in range(60))


def sh(script: str, *words: str, tmp_path: Path) -> tuple[int, Any]:
    command = [sys.executable, "-m", "kvproof", "canary", "--json", str(tmp_path / "json"), *words, "--", "sh", "-c"]
    done = subprocess.run([*command, script], capture_output=True, text=True, timeout=90, check=False)
    return done.returncode, json.loads((tmp_path / "json").read_text())["runs"][0]


def test_processes_that_end_before_the_kernel_says_that_they_began_are_no_hang(tmp_path: Path) -> None:
    code, run = sh("i=0; while [ $i -lt 60 ]; do x=$(echo a | cat); i=$((i+1)); done; exit 0", "--within", "60",
                   tmp_path=tmp_path)
    assert (code, run["how"]) == (0, "ended")
    assert all(each["ended"] is not None for each in run["processes"])


@pytest.mark.parametrize(("script", "code", "line"), [
    ("yes | head -1 >/dev/null; exit 0", 0, None),
    ("sleep 100 & kill $!; exit 0", 0, None),
    ("sleep 100 & echo 'ERROR: cannot bind port 8000'; kill $!; wait; exit 1", 1, "ERROR: cannot bind port 8000"),
    ("sleep 100 & kill $!; wait; exit 1", 1, "killed by signal 15 (SIGTERM)"),
    ("python3 -c 'x='", 1, "SyntaxError: invalid syntax"),
    ("echo 'INFO registered the error handler'; echo 'ERROR: port 8000 is in use'; exit 1", 1,
     "ERROR: port 8000 is in use"),
    ("echo 'ERROR: server failed to start: port 8000 is in use'; exit 1", 1,
     "ERROR: server failed to start: port 8000 is in use"),
])
def test_what_others_ended_on_purpose_and_what_is_no_error_is_not_the_cause(
    script: str, code: int, line: str | None, tmp_path: Path
) -> None:
    found, run = sh(script, tmp_path=tmp_path)
    assert (found, run["cause"]["line"] if run["cause"] else None) == (code, line)


def test_a_port_that_is_taken_is_said_before_anything_is_started() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = canary("--port", str(taken.getsockname()[1]), what="exit 0")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is taken already" in done.stderr
