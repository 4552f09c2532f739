"""Pages of docs/ that name tests, and each of them exists."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "docs" / "field-reports.md"
PAGES = {name: ROOT / "docs" / f"{name}.md" for name in ("field-reports", "security", "architecture", "cluster")}
LEAST = {"cluster": 10}
NAMED = re.compile(r"`([a-z0-9_/]+\.py)::(\w+)`")


@functools.cache
def functions_of(path: str) -> frozenset[str]:
    """Names of the tests of a file below ``tests/``, methods and names of state machines included; none where it is
    missing."""
    file = ROOT / "tests" / path
    if not file.is_file():
        return frozenset()
    tree = ast.parse(file.read_text())
    machines = {
        n.id for each in tree.body if isinstance(each, ast.Assign) for n in each.targets if isinstance(n, ast.Name)
    }
    return frozenset(
        {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)} | machines
    )


def rows() -> list[list[str]]:
    """Cells of the table rows that begin with an id."""
    lines = [line for line in REPORTS.read_text().splitlines() if re.match(r"\| [A-Z][0-9]{2} \|", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("name", PAGES)
def test_each_test_that_is_named_exists(name: str) -> None:
    page = PAGES[name]
    named = NAMED.findall(page.read_text())
    assert len(named) > LEAST.get(name, 20)
    assert page.read_text().count("::") == len(named), "a test is named in another way"
    assert [f"{path}::{name}" for path, name in named if name not in functions_of(path)] == []
    assert [name for _, name in named if not name.startswith(("test_", "Test"))] == []


def test_every_report_has_its_row_and_a_test_or_a_reason() -> None:
    found = rows()
    ids = [cells[0] for cells in found]
    assert len(set(ids)) == len(ids) == 75
    for cells in found:
        number, what, where, done, how = cells
        assert min(map(len, (what, where, done))) > 3, number
        assert NAMED.search(how) or how.startswith("no test: "), number


def test_negative_control() -> None:
    assert functions_of("docs/no_such_file.py") == frozenset()
    assert "test_negative_control" in functions_of("docs/test_docs_field_reports.py")
    assert "test_that_is_not_there" not in functions_of("docs/test_docs_field_reports.py")
