"""`hs-client report`: what is on the page, what of it comes from where, and what happens when things are missing."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chain import command, running_mover
from client_runs import client, prompts
from export_sets import make_export_set
from fake_server import Act, serving
from hs_client.report.facts import losses
from hs_client.report.markup import note, table
from hs_client.report.run_section import limits_in_words
from hs_formats.dataset import DatasetPaths
from hs_formats.index import DatasetIndex
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Failed, Intent, LedgerLine, Rejected, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.timeline import TimelinePoint
from hs_formats.verified import VerifiedSet
from html_pages import HtmlPage, read_page
from part_factory import random_record, write_dataset

SECTIONS = ["Runs", "Lengths", "Slots", "Failures and rejects", "Where it comes from"]
EVIL = '<script>alert("1")</script> & <b>'


def report(*words: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([command("hs-client"), "report", *map(str, words)], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def page_of(path: Path) -> HtmlPage:
    page = read_page(path.read_text())
    assert page.wrong == []
    assert page.headings[1:] == SECTIONS
    return page


def add_timeline(paths: DatasetPaths, run: str, points: Iterable[TimelinePoint]) -> None:
    paths.timeline.mkdir(exist_ok=True)
    with AppendLog(paths.timeline_file(run)) as log:
        log.append(points)


def test_a_run_and_its_report(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir(mode=0o700)
    rows = [{"id": f"s{i}", "input_ids": list(range(1, 20 + i))} for i in range(30)]
    file = prompts(tmp_path / "p.jsonl", [*rows, {"id": EVIL}, {"id": "long", "input_ids": [1] * 5000}])

    def act(number: int, rid: str, ids: list[int]) -> Act:
        return Act(status=400, body={"error": {"message": EVIL}}) if len(ids) == 25 else Act(delay_s=0.3)

    with (
        running_mover(tmp_path / "scratch", tmp_path / "dst", tmp_path) as mover,
        serving(mover.scratch, act=act) as server,
    ):
        ended = client(server, file, "--concurrency", "3")
        done = report(tmp_path / "dst" / "p")
        again = client(server, file)  # the report is in nobody's way
    assert (ended.code, again.code) == (1, 1), again.text
    assert done.returncode == 0, done.stderr
    page = page_of(tmp_path / "dst" / "p" / "report.html")
    text = (tmp_path / "dst" / "p" / "report.html").read_text()
    assert page.tags["svg"] == 4 + 2 + 1 + 3 + 1 + 2  # run, lengths, sizes, channels, compression, losses
    assert "Requests waited for the server" in page.words
    assert (page.tags["details"], text.count("<details open>")) == (1 + 2, 1)
    assert "failed: refused" in page.words
    assert EVIL in page.words, "it is shown, as text"
    assert "finished, some rows failed or were rejected" in page.words
    assert report(tmp_path / "dst" / "p").returncode == 0, "it can be written again"


def test_a_dataset_without_timelines_shows_what_the_manifest_knows(tmp_path: Path) -> None:
    made = make_export_set(tmp_path, (40, 50, 60))
    samples = list(DatasetIndex.load(made.paths).samples.values())
    VerifiedSet.of(samples[:2], verified_at="2026-01-02T03:04:05Z", checks=["books"]).write(made.paths)
    done = report(made.root, "--out", tmp_path / "r.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (made.root / "report.html").exists()
    page = page_of(tmp_path / "r.html")
    assert "not known: it kept no timeline" in page.words
    assert "What limited it" not in page.words
    assert "boundary 4" in page.words
    assert "2verified samples" in page.words
    assert "2026-01-02 03:04:05 UTC: books" in page.words
    assert done.stdout.startswith(f"report     {tmp_path / 'r.html'}, ")


def test_an_empty_dataset_has_a_report_too(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [])
    assert report(paths.root).returncode == 0
    page = page_of(paths.root / "report.html")
    assert "There are no samples." in page.words
    assert "No values were read." in page.words


def test_timelines_of_every_kind(tmp_path: Path) -> None:
    records = [random_record(0, 9, run="0000000a"), random_record(1, 9, run="0000000b")]
    paths = write_dataset(tmp_path / "set", [*records, random_record(2, 9, run="0000000c")])
    killed = [TimelinePoint(at=f"T{at}", run_s=2.0 * at, done=at, tokens=9 * at, answered=at) for at in range(5)]
    add_timeline(paths, "0000000a", killed)
    failed = TimelinePoint(at="x", run_s=9.0, exit_code=4, error=f"the server is gone {EVIL}")
    add_timeline(paths, "0000000b", [TimelinePoint(at="x", run_s=0.0), failed])
    add_timeline(paths, "0000000c", [TimelinePoint(at="x", run_s=0.0, exit_code=0)])
    with paths.timeline_file("0000000c").open("ab") as file:
        file.write(b"\x00\xff torn")
    assert report(paths.root).returncode == 0
    page = page_of(paths.root / "report.html")
    assert "it is going on, or was killed (last heard of T4)" in page.words
    assert f"server lost: the server is gone {EVIL}" in page.words
    assert "nothing was answered" in page.words
    assert "all done" in page.words


def test_damage_is_said_loudly(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(row, 20) for row in range(3)])
    next(paths.data.rglob("*.hsz")).unlink()
    with next(paths.manifest.glob("*.jsonl")).open("ab") as file:
        file.write(b"{nonsense}\n")
    done = report(paths.root)
    assert done.returncode == 1
    assert done.stderr.startswith("warning: left out, as it cannot be read: s")
    page = page_of(paths.root / "report.html")
    assert "1 of the samples drawn cannot be read" in page.words
    assert "1 lines of manifests cannot be read" in page.words


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    made = write_dataset(tmp_path / "set", [random_record(0, 5)])
    for words, code in (((tmp_path,), 3), ((made.root, "--out", tmp_path / "no" / "r.html"), 5)):
        done = report(*words)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    made.verified.write_text("{")
    done = report(made.root)
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1), done.stderr


def test_rows_count_by_what_became_of_them_last() -> None:
    def started(run: str, at: str) -> RunStarted:
        return RunStarted(run=run, started_at=at, inputs=[], servers=[], version="0")

    def sent(row: int, run: str) -> list[LedgerLine]:
        rid = str(Rid(run, row, 0))
        return [Intent(sample_id=f"s{row}", rid=rid, n=1, ids_xxh3="", mask=[], row=f"p:{row}")]

    def failed(row: int, run: str, kind: str) -> LedgerLine:
        return Failed(sample_id=f"s{row}", rid=str(Rid(run, row, 0)), kind=kind, reason=f"because {row}")

    def done(row: int, run: str) -> LedgerLine:
        return Done(sample_id=f"s{row}", rid=str(Rid(run, row, 0)))

    one, two = "0000000a", "0000000b"
    first: Sequence[LedgerLine] = [
        started(one, "2026-01-01"),
        *(line for row in range(5) for line in sent(row, one)),
        failed(0, one, "lost"),
        failed(1, one, "lost"),
        failed(2, one, "lost"),
        done(3, one),
        Rejected(sample_id="s9", row="p:9", reason="has 5000 tokens"),
        Rejected(sample_id="", row="p:10", reason="has 7000 tokens"),
    ]
    second: Sequence[LedgerLine] = [
        started(two, "2026-01-02"),
        *sent(0, two),
        done(0, two),
        *sent(1, two),
        failed(1, two, "refused"),
        *sent(9, two),
        done(9, two),
    ]
    part = str(PartName(Rid(one, 2, 0), 0, 1, 1, 0))
    bad = ManifestLine(
        part=part, status="quarantined", path="", raw_bytes=1, stored_bytes=1, codec="none", reason="has NaN at 7"
    )
    lost, attempts = losses([second, first], [bad])
    assert [(each.fate, each.kind, each.count) for each in lost] == [
        ("failed", "lost", 1),
        ("failed", "refused", 1),
        ("open", "sent and not settled", 1),
        ("rejected", "has … tokens", 1),
    ]
    assert [(each.fate, each.kind, each.count) for each in attempts] == [
        ("failed", "lost", 3),
        ("failed", "refused", 1),
        ("quarantined", "has NaN at …", 1),
    ]
    assert (lost[0].where, lost[0].reason) == ("p:2", "because 2")


def test_what_limited_a_run_in_words() -> None:
    assert limits_in_words((0.0, 0.001, 0, 0)) == "The run hardly waited at all."
    words = limits_in_words((0.2, 0.0, 0.7, 0.1))
    assert (
        words
        == "Requests waited for the mover 70% of the time, the server 20% of the time, the tokeniser 10% of the time."
    )


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_texts_stay_texts(text: str) -> None:
    page = read_page(note(text) + table(("a",), [(text,)]))
    assert page.wrong == []
    assert page.words == text + "a" + text


@pytest.mark.parametrize("name", ["s0", EVIL])
def test_paths_are_texts_too(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name.replace("/", "_")
    write_dataset(folder, [random_record(0, 5)])
    assert report(folder).returncode == 0
    assert page_of(folder / "report.html").headings[0] == f"Hidden states: {folder.name}"
