"""The page in a real browser: it is drawn, in light and dark, on a narrow screen and on paper, without any network.

Skipped, and said so in pytest's summary, where no Chromium is installed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from export_sets import make_export_set
from hs_client.report.style import STYLE
from hs_formats.jsonl import AppendLog
from hs_formats.timeline import TimelinePoint

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
pytestmark = [
    pytest.mark.slow,  # three starts of a browser, some 15 s on two busy cores
    pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="no Chromium: apt-get install chromium"),
]

LIGHT, DARK = "#1f6fb4", "#58a6e8"
"""The first colour of the charts."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_export_set(tmp_path_factory.mktemp("browser"), (40, 200, 60, 90))
    made.paths.timeline.mkdir()
    with AppendLog(made.paths.timeline_file("0000abcd")) as log:
        log.append(
            TimelinePoint(
                at="",
                run_s=2.0 * at,
                done=at,
                tokens=100 * at,
                answered=at,
                used_bytes=at << 20,
                limit_bytes=60 << 20,
                p50_s=0.5,
                p95_s=1.0,
                waited_s={"server": 1.5 * at, "mover": 0.25 * at},
            )
            for at in range(50)
        )
    from hs_client.report.command import ReportSettings, report_command

    out = made.root.parent / "report.html"
    assert report_command(ReportSettings(dataset=made.root, out=out, sample=8)) == 0
    return out


def browser(page: Path, profile: Path, *options: str) -> str:
    """Runs it without a network; returns what it printed."""
    found = next(filter(None, map(shutil.which, BROWSERS)))
    words: Sequence[str] = (
        *(found, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}", *options, page.as_uri()),
    )
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def pixels(picture: Path) -> npt.NDArray[np.uint8]:
    image = pytest.importorskip("PIL.Image")
    with image.open(picture) as opened:
        return np.asarray(opened.convert("RGB"))


def count_of(picture: npt.NDArray[np.uint8], colour: str) -> int:
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return int((picture == wanted).all(axis=2).sum())


def test_it_is_drawn_in_light_and_dark(page: Path, tmp_path: Path) -> None:
    assert LIGHT in STYLE
    assert DARK in STYLE
    drawn: dict[str, npt.NDArray[np.uint8]] = {}
    for name, options in {"light": (), "dark": ("--blink-settings=preferredColorScheme=0",)}.items():
        picture = tmp_path / f"{name}.png"
        browser(page, tmp_path / name, *options, "--window-size=1280,2600", f"--screenshot={picture}")
        drawn[name] = pixels(picture)
    assert drawn["light"].mean() > 200
    assert drawn["dark"].mean() < 80
    assert min(count_of(drawn["light"], LIGHT), count_of(drawn["dark"], DARK)) > 10_000
    assert count_of(drawn["light"], DARK) == count_of(drawn["dark"], LIGHT) == 0
    for each in drawn.values():
        margin = each[:, -8:].reshape(-1, 3)
        assert (margin == margin[0]).all(), "something reaches beyond the right edge"


def test_it_fits_a_narrow_screen_and_paper(page: Path, tmp_path: Path) -> None:
    picture, paper = tmp_path / "narrow.png", tmp_path / "page.pdf"
    browser(page, tmp_path / "a", "--window-size=500,4000", f"--screenshot={picture}")
    narrow = pixels(picture)
    margin = narrow[:, -8:].reshape(-1, 3)
    assert (margin == margin[0]).all(), "something reaches beyond the right edge"
    assert count_of(narrow, LIGHT) > 5_000
    browser(page, tmp_path / "b", f"--print-to-pdf={paper}")
    assert paper.read_bytes().startswith(b"%PDF-")
    assert paper.stat().st_size > 20_000
