"""Stacks of busy Python code are whole, every time, and writing them ends no process."""

from __future__ import annotations

import ctypes
import os
import time

from kvproof.faults.supervisor import supervisor
from kvproof.runner.watchdog import NATIVE, Watchdog


def numbers(depth: int) -> int:
    """Call and return, many times: a thread's frames change while others look at it."""
    return sum(numbers(depth - 1) for _ in range(3)) if depth else len(range(3))


def busy(file: int) -> None:
    """Run Python code until something is written."""
    until = time.monotonic() + 10.0
    while time.monotonic() < until and not os.fstat(file).st_size:
        numbers(3)


def written(file: int) -> str:
    return os.pread(file, 1 << 20, 0).decode()


def main() -> None:
    """Be watched while busy, a few hundred times; exit with how often the stacks were not whole."""
    file, torn = os.memfd_create("stacks"), 0
    for turn in range(300):
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        with Watchdog(0.001 + turn % 7 * 1e-4, file):
            busy(file)
        torn += not ("in busy" in written(file) and "in main" in written(file))
    raise SystemExit(min(torn, 100))


def test_stacks_of_busy_code_are_whole() -> None:
    process = supervisor().spawn_module("tests.test_watchdog")
    try:
        end = process.wait(60)
    finally:
        process.close()
    assert end is not None, "not done within 60 s"
    assert end.exit == 0, f"the process {end} (its exit code is how many of 300 were torn)"


def test_what_ends_in_time_writes_nothing_then_or_later() -> None:
    file = os.memfd_create("stacks")
    for _ in range(100):
        with Watchdog(0.01, file):
            numbers(1)
    with Watchdog(NATIVE + 0.2, file):
        time.sleep(0.02)
    assert written(file) == ""
    os.close(file)


def test_code_that_keeps_the_interpreter_is_told_by_the_second_watchdog() -> None:
    file = os.memfd_create("stacks")
    begun = time.monotonic()
    with Watchdog(0.05, file):
        # As native code that keeps Python's lock while it waits.
        ctypes.PyDLL(None).usleep(int((NATIVE + 0.3) * 1e6))
    assert time.monotonic() - begun > NATIVE
    assert "in test_code_that_keeps_the_interpreter" in written(file)
    os.close(file)


if __name__ == "__main__":
    main()
