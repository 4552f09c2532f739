"""README.md claims what the committed results say, and nothing else."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from benchmarks.headlines import headlines
from benchmarks.results import RESULTS

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"<!-- latest result -->\n\n(.*?)\n\n<!-- end of the latest result -->", re.DOTALL)


def test_readme_says_what_the_newest_results_say() -> None:
    shown = SHOWN.search((ROOT / "README.md").read_text())
    assert shown is not None
    assert shown[1] == headlines().strip(), "a result was added: python -m benchmarks report"


def test_each_claim_names_a_result_file_of_this_repository() -> None:
    rows = headlines().splitlines()[2:]
    assert len(rows) >= 8
    for row in rows:
        link = re.search(r"\((benchmarks/results/\S+\.json)\)", row)
        assert link is not None, row
        assert (ROOT / link[1]).is_file(), row


def test_what_has_no_result_is_not_claimed(tmp_path: Path) -> None:
    assert headlines(tmp_path).splitlines()[2:] == []
    shutil.copytree(RESULTS / "codec", tmp_path / "codec")
    (row,) = headlines(tmp_path).splitlines()[2:]
    assert "lossless" in row
    for file in (tmp_path / "codec").glob("*.json"):
        file.write_text(file.read_text().replace('"valid": true', '"valid": false'))
    assert headlines(tmp_path).splitlines()[2:] == []
