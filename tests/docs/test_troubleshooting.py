"""docs/troubleshooting.md and the source agree: what is quoted is printed, and what is printed is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from messages import GAP, fits, raised, texts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "troubleshooting.md"

ERRORS = frozenset(
    {
        *("HsError", "UsageError", "PreflightError", "ServerLost", "StorageError"),
        *("CaptureRefused", "RowError", "Verdict", "LeftAlone", "BadPart", "BadFolders", "Finding"),
    }
)
# Whole lines that say nothing by themselves; what they are filled with is explained.
FILLED_IN = {
    f"{GAP}=…: …; …",
    f"{GAP}=…: …",
    "scratch …: …",
    "… … where the dataset has …",
    "not usable: …",
    "… choose with --boundaries or --eagle-ids",
    "…; name it with --dataset",
    (
        "… for … s; … samples are pending and their part files are kept in …: see to `hs-mover --src … --dst …`, then "
        "repeat this command, which goes on where it stopped"
    ),
    "no tokenizer is loaded",  # a fault of ours: the client loads it before
    "The part belongs to a dataset below another destination.",  # what the class is for, not what it says
}


def quoted() -> list[str]:
    """The messages on the page: code in the first cell of a table's rows, in the second where kinds come first."""
    found: list[str] = []
    kinds_first = False
    for line in PAGE.read_text().splitlines():
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        if not cells:
            kinds_first = False
            continue
        kinds_first = kinds_first or cells[0].strip() == "kind"
        spans = re.findall(r"`([^`]+)`", cells[0] + (cells[1] if kinds_first else ""))
        found += [span for span in spans if len(span.replace(GAP, "").strip()) > 3]
    return found


QUOTED = quoted()


def test_the_page_is_read_as_it_is_meant() -> None:
    assert len(QUOTED) > 150
    assert "hook silent" in QUOTED
    assert "room in scratch" in QUOTED


def test_what_the_page_quotes_is_printed() -> None:
    source = texts()
    gone = [message for message in QUOTED if not any(fits(message, text) for text in source)]
    assert gone == [], "docs/troubleshooting.md quotes what is not printed any more"


def test_what_is_printed_is_on_the_page() -> None:
    unexplained = {
        text: where
        for text, where in raised(ERRORS).items()
        if text not in FILLED_IN and not any(fits(message, text) for message in QUOTED)
    }
    assert unexplained == {}, "give them a row in docs/troubleshooting.md"


def test_every_reason_of_a_refused_capture_is_on_the_page() -> None:
    guards = pytest.importorskip("hs_server.capture.guards")
    assert [guard.reason for guard in guards.GUARDS if guard.reason not in QUOTED] == []


def test_negative_control() -> None:
    source = texts()
    assert not any(fits("the server at … is on strike", text) for text in source)
    assert not fits("port … is taken by …", "port … is free")
    assert fits("port … is taken by …", "port … is taken by … stop it")
