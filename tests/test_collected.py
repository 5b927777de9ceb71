from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent


def written() -> set[str]:
    """`file::test` or `file::Class::test` for every test that stands in a file, whatever the file is called."""
    found = set()
    for path in HERE.rglob("*.py"):
        for node, owner in functions(ast.parse(path.read_text(encoding="utf-8"))):
            found.add("::".join([path.relative_to(HERE.parent).as_posix(), *owner, node.name]))
    return found


def functions(tree: ast.Module) -> list[tuple[ast.FunctionDef, tuple[str, ...]]]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found += [(inner, (node.name,)) for inner in node.body if isinstance(inner, ast.FunctionDef)]
        elif isinstance(node, ast.FunctionDef):
            found.append((node, ()))
    return [(node, owner) for node, owner in found if node.name.startswith("test")]


def test_no_two_tests_of_a_file_share_a_name():
    for path in HERE.rglob("*.py"):
        names = [(*owner, node.name) for node, owner in functions(ast.parse(path.read_text(encoding="utf-8")))]
        assert len(names) == len(set(names)), path


def test_every_test_that_is_written_is_collected(collected):
    assert written() <= collected, sorted(written() - collected)
    assert len(written()) > 200
