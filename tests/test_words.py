"""The words of docs/glossary.md: identifiers, class names and docstrings of src/."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "idcf"
FILES = sorted(SOURCE.rglob("*.py"))
BANNED = frozenset(
    """
    found told said heard had mine own who whom whose way sure usual kept asked left theirs
    desk brought kin fame crowd beside wish newcomer newcomers somebody nobody everybody whoever
    people strange silent lonely
    """.split()  # noqa: SIM905 - a list of words reads better as text
)
Function = ast.FunctionDef | ast.AsyncFunctionDef
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every name that a module defines or binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, Function | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, getattr(node, "lineno", 0)


def public(tree: ast.Module) -> Iterator[ast.ClassDef | Function]:
    """Yield the public classes of a module, its functions, and the methods of the classes."""
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (
                    x for x in node.body if isinstance(x, Function) and not x.name.startswith("_")
                )


def is_overload(node: ast.AST) -> bool:
    """Return whether a function is one of several `typing.overload` signatures."""
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(x, ast.Name) and x.id == "overload" for x in decorators)


def n_lines(node: Function) -> int:
    """Return the number of lines of a function's body without its docstring."""
    first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
    return (node.end_lineno or 0) - first.lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_names_are_those_of_things(path: Path) -> None:
    banned = [f"{name} (line {line})" for name, line in names(TREES[path]) if name in BANNED]
    assert not banned, f"{path.name}: {', '.join(banned)}; name the thing, see docs/glossary.md"


def test_no_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_everything_public_has_a_docstring(path: Path) -> None:
    tree = TREES[path]
    assert ast.get_docstring(tree), f"{path.name} has no module docstring"
    bare = [
        f"{node.name} (line {node.lineno})"
        for node in public(tree)
        if not ast.get_docstring(node) and not is_overload(node)
    ]
    assert not bare, f"{path.name}: no docstring of {', '.join(bare)}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_and_functions_are_short(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("\n") <= 600
    lengths = {x.name: n_lines(x) for x in ast.walk(TREES[path]) if isinstance(x, Function)}
    long = [f"{name}: {n} lines" for name, n in lengths.items() if n > 50]
    assert not long, f"{path.name}: {', '.join(long)}"


def test_the_root_holds_the_ten_packages_and_few_files() -> None:
    packages = {x.name for x in SOURCE.iterdir() if x.is_dir() and x.name != "__pycache__"}
    assert packages == {
        "cli", "data", "evaluation", "inference", "metrics",
        "models", "paper", "server", "testing", "training",
    }  # fmt: skip
    assert len(list(SOURCE.glob("*.py"))) <= 11
