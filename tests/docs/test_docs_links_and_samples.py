"""Links between the documents lead somewhere, and the Python that they show runs."""

from __future__ import annotations

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from part_factory import random_record, write_dataset

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
WIDTH = 125
FOLDERS = (
    "benchmarks",
    "client",
    "docs",
    "examples",
    "formats",
    "mover",
    "requirements",
    "server_launch",
    "tests",
    "tools",
)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken: list[str] = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_of_prose_are_short(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_of_the_repository_that_are_named_exist(page: Path) -> None:
    named_files = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", page.read_text())
    assert [name for name in named_files if not (ROOT / name).exists() and not name.endswith("/NAME.py")] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_modules_that_are_named_exist(page: Path) -> None:
    modules = re.findall(r"`(hs_(?:formats|server|mover|client)(?:\.[a-z_]+)+)`", page.read_text())
    assert [name for name in modules if find_spec(name) is None] == []


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs" / "README.md").read_text()))
    folder = ROOT / "docs"
    missing = [str(page.relative_to(folder)) for page in folder.glob("*.md") if page.name not in {*linked, "README.md"}]
    assert missing == []
    assert {"formats/README.md", *(f"cli_help/{path.name}" for path in (folder / "cli_help").iterdir())} <= linked


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_python_samples_run(page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = write_dataset(
        tmp_path / "prompts", [random_record(0, 5, cuts=[2], mask=[(2, 5)]), random_record(1, 3)]
    ).root
    samples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert samples
    for number, sample in enumerate(samples):
        assert '"/data/prompts"' in sample
        script = tmp_path / f"sample{number}.py"
        script.write_text(sample.replace('"/data/prompts"', repr(str(dataset))))
        known = runpy.run_path(str(script))
        assert len(known["data"]) == 2
        assert known["sample"].hidden_states.shape == (5, 3, 4)
        assert known["sample"].loss_mask.tolist() == [0, 0, 1, 1, 1]
    assert "Traceback" not in capsys.readouterr().err
