"""Mutation of the models: small changes made at random, each of which the models' own tests have to notice.

Run as ``python -m tests.mutation [--count 400] [--seed 0] [--only load]`` (``make mutants``). The changes are those of
cosmic-ray; a change that leaves the program as it is (in an annotation or a docstring) is none, and neither is `==`
made `is`, or `!=` made `is not`, where one side is a literal: the literals of the models are small numbers, single
bytes and names, each of which is one object, and Python warns of such a line and ruff refuses it (F632). Each change is
made in a copy of the tree, and a quick selection of tests is run there. Survivors are to be explained in
mutants_explained.toml.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[1]
EXPLAINED = Path(__file__).with_name("mutants_explained.toml")
TESTS = {
    "load": ["tests/test_model_load.py", "tests/test_mistakes_load.py", "-k",
             "not random and not tlc and not fairness and not table and not (small_bounds and (3 or 4))"],
    "client": ["tests/test_client.py"],
    "resp": ["tests/test_resp.py"],
}
"""The tests of each model that are run on its mutants: quick ones that import little."""
DEADLINE = 60.0
WANTED = 0.95


@dataclass(frozen=True)
class Mutation:
    """One change: the module, the operator of cosmic-ray and which of its places, and the changed text."""

    module: str
    operator: str
    occurrence: int
    text: str

    def change(self) -> list[str]:
        """Return the lines that differ, as a diff shows them."""
        before = (ROOT / "models" / f"{self.module}.py").read_text()
        lines = difflib.unified_diff(before.splitlines(), self.text.splitlines(), lineterm="", n=0)
        return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def meaning(text: str) -> str:
    """Return a program without what says nothing to it: annotations and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
                node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(tree)


def identity_of_a_literal(operator: str, text: str) -> bool:
    """Whether the change compares a literal by identity, in the same sense as before by value; Python warns of that."""
    if not operator.endswith(("_Eq_Is", "_NotEq_IsNot")):
        return False
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compile(text, "<mutant>", "exec")
    return any(issubclass(warning.category, SyntaxWarning) for warning in said)


def mutations(module: str) -> Iterator[Mutation]:
    """Return every change that can be made to a model and means something."""
    from cosmic_ray.commands.init import _all_work_items
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    path = ROOT / "models" / f"{module}.py"
    before = path.read_text()
    same = meaning(before)
    for item in _all_work_items([path], {}):
        [spec] = item.mutations
        operator = get_operator(spec.operator_name)(**(spec.operator_args or {}))
        text = mutate_code(before, operator, spec.occurrence)
        if text is None:
            continue
        try:
            changed = meaning(text) != same
        except SyntaxError:
            continue
        if changed and not identity_of_a_literal(spec.operator_name, text):
            yield Mutation(module, spec.operator_name.removeprefix("core/"), spec.occurrence, text)


def tried(mutation: Mutation, copy: Path) -> str:
    """Return "killed", "killed by the clock" or "survived"."""
    target = copy / "models" / f"{mutation.module}.py"
    before = target.read_text()
    target.write_text(mutation.text)
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS[mutation.module]]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, timeout=DEADLINE, check=False,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    except subprocess.TimeoutExpired:
        return "killed by the clock"
    finally:
        target.write_text(before)
    return "survived" if done.returncode == 0 else "killed"


def run(drawn: Sequence[Mutation], workers: int = 2) -> list[tuple[Mutation, str]]:
    """Try every mutation, in copies of the tree; say how far it is on a terminal."""
    with tempfile.TemporaryDirectory(prefix="kvproof-mutants-") as directory:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            copy = Path(directory, str(number))
            shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(
                ".venv", ".git", "wheels", "build", "__pycache__", ".*_cache", ".hypothesis"))
            copies.put(copy)
        done = 0

        def one(mutation: Mutation) -> tuple[Mutation, str]:
            nonlocal done
            copy = copies.get()
            try:
                return mutation, tried(mutation, copy)
            finally:
                copies.put(copy)
                done += 1
                if sys.stderr.isatty():
                    print(f"\r\x1b[K[{done}/{len(drawn)}]", end="", file=sys.stderr)

        for module in {mutation.module for mutation in drawn}:
            whole = Mutation(module, "none", 0, (ROOT / "models" / f"{module}.py").read_text())
            _, verdict = one(whole)
            if verdict != "survived":
                command = " ".join(TESTS[module])
                sys.exit(f"the tests of {module} fail on the model as it is: python -m pytest {command}")
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, drawn))


def explained() -> dict[tuple[str, str], str]:
    """Return why each survivor that is known is no mistake: by module and the changed line."""
    entries = tomllib.loads(EXPLAINED.read_text())["survivor"] if EXPLAINED.exists() else []
    return {(entry["module"], entry["change"]): entry["why"] for entry in entries}


def main() -> int:
    """Draw, try and report; 1 when too few are killed, or a survivor is not explained."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=400)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=sorted(TESTS))
    chosen = options.parse_args()
    every = [each for module in ([chosen.only] if chosen.only else sorted(TESTS)) for each in mutations(module)]
    drawn = random.Random(chosen.seed).sample(every, min(chosen.count, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants, drawn by seed {chosen.seed}", flush=True)
    begun = time.monotonic()
    results = run(drawn)
    survivors = [mutation for mutation, verdict in results if verdict == "survived"]
    counts = Counter((mutation.module, verdict) for mutation, verdict in results)
    for (module, verdict), number in sorted(counts.items()):
        print(f"{module}: {number} {verdict}")
    reasons, unexplained = explained(), 0
    for mutation in survivors:
        change = " ".join(" ".join(mutation.change()).split())
        why = reasons.get((mutation.module, change))
        unexplained += why is None
        print(f"survived: {mutation.module}: {mutation.operator}: {change}\n  {why or 'NOT EXPLAINED'}")
    killed = 1 - len(survivors) / max(1, len(drawn))
    print(f"{100 * killed:.1f} % killed in {time.monotonic() - begun:.0f} s; {len(survivors)} survivors, "
          f"{unexplained} not explained")
    return 1 if killed < WANTED or unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
