"""The tree is as it claims: links, who imports whom, what is imported where and when."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {"spec": {"models"}, "models": set(), "faults": {"models"}}
"""Which of our packages each layer may import besides `kvproof.errors`; `kvproof` itself may import all."""

OURS = ("spec", "models", "faults", "kvproof")
ONLY_IN_RUNNERS = {"torch", "lmcache", "redis", "valkey", "glide_sync", "coredis", "fakeredis", "transformers"}
MAY_IMPORT_THEM = ("kvproof/connectors/", "kvproof/runner/buffers.py", "kvproof/ranks/collectives.py",
                   "faults/fakeredis_server.py", "kvproof/gpu/")


def sources(*packages: str) -> Iterator[tuple[Path, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not any(part.is_symlink() for part in [path, *path.parents][: len(path.relative_to(ROOT).parts)]):
                yield path, ast.parse(path.read_text(), str(path))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide which layer is meant"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def complaints(path: Path, tree: ast.Module, layer: str) -> list[str]:
    """What is wrong with the imports of a file of this layer."""
    found = []
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    for imported in imports(tree):
        parts = imported.split(".")
        if parts[0] in ("spec", "models", "faults"):
            found.append(f"{name} imports {imported} bare; write kvproof.{imported}")
        allowed = {"errors", layer, *LAYERS.get(layer, OURS)}
        if layer in LAYERS and parts[0] == "kvproof" and not allowed & {*parts[1:2]}:
            found.append(f"{name} imports {imported}; {layer} may not")
        if parts[0] == "z3" and layer != "spec":
            found.append(f"{name} imports z3, which spec alone may")
        if parts[0] in ONLY_IN_RUNNERS and not name.startswith(MAY_IMPORT_THEM):
            found.append(f"{name} imports {parts[0]}, which belongs into a runner")
    return found


@pytest.mark.parametrize("layer", OURS)
def test_every_layer_imports_only_what_it_may(layer: str) -> None:
    found = [line for path, tree in sources(layer) for line in complaints(path, tree, layer)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        ("models", "import kvproof.faults.endpoint"),
        ("models", "from kvproof import results"),
        ("faults", "from kvproof.runner import Runner"),
        ("spec", "from kvproof.faults import gates"),
        ("kvproof", "import models"),
        ("kvproof", "from faults.gates import Gap"),
        ("kvproof", "import z3"),
        ("faults", "def f():\n    import torch"),
    ],
)
def test_a_planted_wrong_import_is_seen(layer: str, code: str) -> None:
    planted = ROOT / layer / "planted.py"
    assert complaints(planted, ast.parse(code), layer), f"{code!r} in {layer} was not noticed"


def test_the_layers_are_linked_into_the_package() -> None:
    for layer in LAYERS:
        link = ROOT / "kvproof" / layer
        assert link.is_symlink(), f"{link} is not a symbolic link"
        assert link.readlink() == Path("..", layer), f"{link} leads to {link.readlink()}"
        listed = subprocess.run(["git", "ls-files", "-s", f"kvproof/{layer}"], cwd=ROOT, capture_output=True, text=True)
        assert listed.stdout.startswith("120000") or listed.returncode, f"kvproof/{layer} is not committed as a link"


def test_nothing_is_imported_twice_under_two_names() -> None:
    bare = [name for name in sys.modules if name.partition(".")[0] in ("spec", "models", "faults")]
    assert not bare, f"imported bare, so a second time: {bare}"


def test_the_command_line_starts_without_heavy_imports() -> None:
    code = (
        "import sys\n"
        "from kvproof.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'hypothesis', 'torch', 'z3', 'trio', 'rich', 'lmcache', 'redis'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_file_says_its_subject_in_its_first_line() -> None:
    for path, tree in sources(*OURS, "tests", "bench"):
        said = ast.get_docstring(tree)
        assert said, f"{path.relative_to(ROOT)} does not say what it is"
        assert path.read_text().startswith(('"""', 'r"""')), f"{path.relative_to(ROOT)}: no subject first"


def test_every_error_says_what_it_is_for_and_is_documented() -> None:
    from kvproof import errors

    for name, error in vars(errors).items():
        if isinstance(error, type):
            assert issubclass(error, errors.KvproofError), f"{name} is no KvproofError"
            assert error.__doc__, f"{name} says nothing about its remedy"
