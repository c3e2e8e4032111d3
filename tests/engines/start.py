"""An engine's start as far as the canary's tests need it: one planted mistake by name, in a process that it begins."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

OPEN: list[TextIO] = []


def deep(options: dict[str, int]) -> None:
    raise ValueError(f"block budget {options['blocks']} is below what the connector needs")


def worker(what: str) -> None:
    print(f"worker {os.getpid()}: loading", flush=True)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "hang":
        wait_for_a_peer()
    if what in ("log", "closed log"):
        log = open(os.environ["ENGINE_LOG"], "a")  # noqa: SIM115  # as handlers of logs do, it stays open
        OPEN.append(log)
        log.write("INFO starting\nERROR cannot allocate 3 GiB for KV blocks\n")
        log.flush()
        if what == "closed log":
            log.close()
        sys.exit(3)
    if what == "busy log":
        OPEN.append(open(os.environ["ENGINE_LOG"], "a"))  # noqa: SIM115  # as above
        Path(f"{os.environ['ENGINE_LOG']}.weights").write_bytes(bytes(1 << 20))
        time.sleep(2)
        print("INFO stopping", file=OPEN[-1], flush=True)
        sys.exit(3)
    if what == "interaction" and os.environ["CONNECTOR"] == "remote" and os.environ["BLOCKS"] == "large":
        deep({"blocks": 7})
    print(f"worker {os.getpid()}: ready", flush=True)
    time.sleep(0.05)


def wait_for_a_peer() -> None:
    time.sleep(3600)


def grandchild() -> None:
    deep({"blocks": 3})


def main(what: str) -> None:
    print(f"engine: version 1.0, {what}", flush=True)
    if what == "swallowed":
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import start; start.grandchild()"
        middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], stderr=None)"
        subprocess.run([sys.executable, "-c", middle], check=False)
        print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr, flush=True)
        sys.exit(1)
    if what == "exit 0":
        print("0 errors", flush=True)
        return
    if what == "serves":
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", int(os.environ["PORT"])))
            listening.listen()
            print("serving", flush=True)
            time.sleep(3600)
    child = multiprocessing.get_context("fork").Process(target=worker, args=(what,))
    child.start()
    if what == "killed":
        # The child dies before anybody asks for it; its parent only says that something failed.
        time.sleep(0.3)
    child.join()
    if child.exitcode:
        print("Engine core initialization failed. See root cause above.", file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
