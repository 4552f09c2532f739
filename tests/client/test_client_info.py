"""`hs-client info`: one screen, also of a dataset that many runs have made."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from hs_client.cli import main
from hs_client.info_command import info_lines
from hs_formats.errors import PreflightError
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Rejected, RunStarted
from part_factory import dataset_info, random_record, write_dataset


def test_it_fits_a_screen(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(row, 5 + row) for row in range(3)])
    for day in range(1, 29):
        run = f"{999 - day:08x}"  # ids do not follow the time
        with AppendLog(paths.ledger_file(run)) as log:
            at = f"2026-02-{day:02}T00:00:00Z"
            log.append([RunStarted(run=run, started_at=at, inputs=["a.jsonl", "b.jsonl"], servers=[], version="0")])
            log.append([Rejected(sample_id="x", row="p:1", reason="no")] * day)
    lines = list(info_lines(paths.root))
    assert len(lines) <= 24
    assert lines[4] == "samples    3 done, 3 parts"
    assert "runs       19 earlier ones, and the newest: hs-client report has all" in lines
    assert lines[-1] == "run        000003cb  2026-02-28T00:00:00Z, a.jsonl, b.jsonl: 28 rejected"
    assert lines[-10].startswith("run        000003d4  2026-02-19T")


def test_few_runs_are_all_there(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(0, 5), random_record(1, 5, run="0000abce")])
    lines = list(info_lines(paths.root))
    assert [line[:19] for line in lines if line.startswith("run")] == ["run        0000abcd", "run        0000abce"]


@pytest.mark.parametrize("command", ["info", "verify", "split"])
def test_names_of_others_do_not_act_on_the_terminal(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dataset from somebody else: its model's name, a sample's id and a folder's name carry escape sequences."""
    evil = "\x1b]0;mine\x07\u202e"
    paths = write_dataset(
        tmp_path / f"set{evil}",
        [random_record(0, 5)],
        info=replace(dataset_info(), model=f"/models/{evil}"),
    )
    with AppendLog(paths.ledger_file("0000abce")) as log:
        log.append([Done(sample_id=evil, rid="hs-0000abce-00000000-00", finish_reason="length")])
    more = [str(tmp_path / "out")] if command == "split" else []
    monkeypatch.setattr("sys.argv", ["hs-client", command, str(paths.root), *more])
    with contextlib.suppress(SystemExit):
        main()
    said = "".join(capfd.readouterr())
    assert r"\x1b]0;mine\x07" in said
    assert not {*"\x1b\x07\u202e"} & {*said}


def test_a_destination_is_no_dataset_and_those_below_it_are_named(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as empty:
        list(info_lines(tmp_path))
    assert str(empty.value).endswith("give the folder below the destination")
    for name in ("b", "a"):
        write_dataset(tmp_path / name, [random_record(0, 5)])
    with pytest.raises(PreflightError) as full:
        list(info_lines(tmp_path))
    assert str(full.value).endswith(f"below the destination, such as {tmp_path / 'a'}, {tmp_path / 'b'}")
