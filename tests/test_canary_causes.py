"""What a newcomer and somebody who wanted to break the canary met: true causes among lines that only look like some."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def watched(tmp_path: Path, *words: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Return the exit code, what was printed, and the runs."""
    done = subprocess.run([sys.executable, "-m", "kvproof", "canary", "--json", str(tmp_path / "json"), *words],
                          capture_output=True, text=True, timeout=90, check=False, cwd=tmp_path)
    return done.returncode, done.stdout, json.loads((tmp_path / "json").read_text())["runs"]


def line(tmp_path: Path, *words: str) -> str:
    """Return the cause of the only run, which fails."""
    code, _, [run] = watched(tmp_path, *words)
    assert code == 1
    return str(run["cause"]["line"])


_IGNORED = """
class Engine:
    def __del__(self):
        self.core.stop()
engine = Engine()
raise ValueError("max_model_len is too large")
"""
_KILLS = """
import subprocess, sys
print("ERROR: cannot bind port 8000", flush=True)
child = subprocess.Popen(["sleep", "50"])
child.kill()
child.wait()
sys.exit(1)
"""
_SUPERVISES = """
import signal, subprocess, sys, time
one = subprocess.Popen([sys.executable, "-c", "import sys, time; time.sleep(0.3); sys.exit(3)"])
two = subprocess.Popen([sys.executable, "-c", "import signal, sys, time\\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\\nprint('up', flush=True)\\ntime.sleep(50)"],
    stdout=subprocess.PIPE)
two.stdout.read(1)
one.wait()
two.send_signal(signal.STOP)
two.wait()
sys.exit(1)
"""
_FIRST = "exit code 3, and what it said, if anything, was not seen; 1 above it failed after it"
_LOGS = """
import sys, traceback
def fails(kind, text):
    try:
        raise kind(text)
    except kind:
        traceback.print_exc()
fails(ConnectionError, "refused")
print("INFO retry ok", file=sys.stderr)
for _ in range(9):
    print("INFO loading", file=sys.stderr)
print("ERROR: port 8000 is in use", file=sys.stderr)
for _ in range(9):
    print("INFO leaving", file=sys.stderr)
sys.exit(1)
"""


@pytest.mark.parametrize(("code", "says"), [
    ("raise RuntimeError('CUDA driver initialization failed, you might not have a CUDA gpu.')",
     "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu."),
    (_IGNORED, "ValueError: max_model_len is too large"),
    (_KILLS, "ERROR: cannot bind port 8000"),
    (_SUPERVISES.replace("STOP", "SIGTERM"), _FIRST),
    (_SUPERVISES.replace("STOP", "SIGKILL"), _FIRST),
    ("print('\\x1b[32mINFO\\x1b[0m registered the error handler\\nERROR: port 8000 in use'); raise SystemExit(1)",
     "ERROR: port 8000 in use"),
    ("print('\\x1b[31mFATAL\\x1b[0m: GPU fell off the bus'); raise SystemExit(1)", "FATAL: GPU fell off the bus"),
    ("print('(Core pid=3) INFO 12:00 an error handler\\nbind: address already in use'); raise SystemExit(1)",
     "bind: address already in use"),
    ("print('CUDA: unable to allocate 3 GiB'); raise SystemExit(1)", "CUDA: unable to allocate 3 GiB"),
    ("print('the GPU is on fire'); raise SystemExit(1)",
     "exit code 1, and no line that it printed is known to say why; the last: the GPU is on fire"),
])
def test_the_cause_is_named(code: str, says: str, tmp_path: Path) -> None:
    assert line(tmp_path, "--", sys.executable, "-c", code) == says


def test_beside_the_cause_stands_what_else_went_wrong(tmp_path: Path) -> None:
    _, said, _ = watched(tmp_path, "--", sys.executable, "-c", _LOGS)
    assert "then: ERROR: port 8000 is in use" in said
    chained = "try:\n    import nothing_like_it\nexcept ImportError:\n    raise RuntimeError('GPU out of memory')"
    _, said, _ = watched(tmp_path, "--", sys.executable, "-c", chained)
    assert said.startswith("root cause: ModuleNotFoundError: No module named 'nothing_like_it'")
    assert "then: RuntimeError: GPU out of memory" in said


def test_a_process_after_which_its_parent_went_on_is_only_named(tmp_path: Path) -> None:
    said = line(tmp_path, "--", "sh", "-c", "grep -q nothing_like_it /dev/null; sleep 0.1; exit 3")
    assert said.startswith("exit code 3, ")
    assert "before that process" in said
    assert "grep" in said


def test_a_hang_is_called_one_whatever_was_warned_of(tmp_path: Path) -> None:
    code, said, [run] = watched(tmp_path, "--within", "1", "--", "sh", "-c",
                                "echo 'WARNING: could not find config, using defaults'; sleep 50")
    assert (code, run["cause"]["kind"]) == (1, "hang")
    assert said.startswith("a hang: ")


def test_what_says_that_it_serves_and_fails_does_not_serve(tmp_path: Path) -> None:
    said = line(tmp_path, "--ready", "serving", "--", "sh", "-c", "echo serving; echo 'ERROR: no gpu'; exit 1")
    assert said == "ERROR: no gpu"


def test_the_text_by_which_it_serves_may_be_followed_by_much(tmp_path: Path) -> None:
    code = "import os, time; os.write(1, b'serving on 8000\\n' + b'x' * 400000 + b'\\n'); time.sleep(50)"
    found, _, [run] = watched(tmp_path, "--within", "20", "--ready", "serving on", "--", sys.executable, "-c", code)
    assert (found, run["how"]) == (0, "ready")


def test_of_much_output_and_of_a_large_log_beginning_and_end_are_kept_and_it_is_said(tmp_path: Path) -> None:
    code = ("import sys\nwith open('engine.log', 'w') as log:\n"
            "    log.write('INFO fine\\n' * 700000 + 'ERROR: the end\\n')\nprint('fine\\n' * 2000000)\nsys.exit(1)")
    found, said, [run] = watched(tmp_path, "--outputs", str(tmp_path / "out"), "--", sys.executable, "-c", code)
    assert (found, run["cause"]["line"]) == (1, "ERROR: the end")
    assert " more in the middle were not kept" in said
    [file] = (tmp_path / "out").iterdir()
    assert " bytes were not kept ...]" in file.read_text()


def test_a_log_that_was_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("old\n" * 1000)
    code = ("import sys\nlog = open('engine.log', 'r+')\nlog.truncate(0)\nlog.write('ERROR: cannot allocate KV\\n')\n"
            "log.close()\nsys.exit(3)")
    assert line(tmp_path, "--", sys.executable, "-c", code) == "ERROR: cannot allocate KV"


def test_a_factor_leaves_the_shells_variables_and_one_bad_level_does_not_lose_the_others(tmp_path: Path) -> None:
    code, _, runs = watched(tmp_path, "--factor", "A=none,lmcache", "--", "sh", "-c",
                            'test "${A}" = none || test "${A}" = lmcache')
    assert (code, len(runs)) == (0, 2)
    code, said, runs = watched(tmp_path, "--factor", "CMD=true,no_such_program", "--", "{CMD}")
    assert (code, [run["cause"] and run["cause"]["kind"] for run in runs]) == (1, [None, "no start"])
    assert "which factor matters" in said


def test_many_long_levels_have_files_all_the_same(tmp_path: Path) -> None:
    factors = [word for name in "ABCD" for word in ("--factor", f"{name}={'x' * 80},{'y' * 80}")]
    code, _, runs = watched(tmp_path, *factors, "--outputs", str(tmp_path / "out"), "--", "echo", "hi")
    assert (code, len(runs), len(list((tmp_path / "out").iterdir()))) == (0, 16, 16)


def test_the_versions_are_of_the_python_that_ran(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "v")], check=True)
    (tmp_path / "act.sh").write_text(". ./v/bin/activate; python -c 'import sys; print(sys.executable)'")
    watched(tmp_path, "--", "sh", "act.sh")
    pythons = json.loads((tmp_path / "json").read_text())["setting"]["pythons"]
    assert list(pythons) == [str(tmp_path / "v" / "bin" / "python")]
    assert pythons[str(tmp_path / "v" / "bin" / "python")]["distributions"] == {}
