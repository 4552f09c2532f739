"""`hs-client prune` deletes in the dataset that it was given, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hs_client.prune_command import delete, find_orphans
from part_factory import random_record, write_dataset


@pytest.mark.parametrize("place", ["quarantine", "data", "unclaimed"])
def test_files_behind_a_link_to_elsewhere_are_left_alone(tmp_path: Path, place: str) -> None:
    """A dataset from somebody else whose folder is a link to other data of ours: its parts look like orphans there."""
    ours = write_dataset(tmp_path / "ours" / "set", [random_record(0, 5, cuts=[2])])
    theirs = write_dataset(tmp_path / "got" / "theirs", [random_record(0, 5, cuts=[2])])
    stale = 1_000_000_000
    match place:
        case "quarantine":
            theirs.quarantine.symlink_to(next(ours.data.rglob("*.hsz")).parent)
        case "unclaimed":
            (theirs.root.parent / "unclaimed").symlink_to(ours.data)
        case _:
            theirs.data.rename(tmp_path / "aside")
            theirs.data.symlink_to(ours.data)
            theirs.ledger_file("0000abcd").unlink()  # so that no sample needs them
            theirs.ledger_file("0000abcf").touch()
    for ledger in theirs.ledger.glob("*.jsonl"):
        os.utime(ledger, (stale, stale))
    before = sorted(ours.root.rglob("*"))
    orphans = find_orphans(theirs.root, tmp_path / "scratch")
    delete(orphans)
    assert orphans == []
    assert sorted(ours.root.rglob("*")) == before


def test_the_same_without_the_link_is_deleted(tmp_path: Path) -> None:
    theirs = write_dataset(tmp_path / "got" / "theirs", [random_record(0, 5, cuts=[2])])
    theirs.ledger_file("0000abcd").unlink()
    (theirs.root.parent / "unclaimed" / "0000abce").mkdir(parents=True)
    (theirs.root.parent / "unclaimed" / "0000abce" / "x.pt").write_bytes(b"x")
    theirs.quarantine.mkdir(exist_ok=True)
    (theirs.quarantine / "y.pt").write_bytes(b"y")
    assert len(find_orphans(theirs.root, tmp_path / "scratch")) == 4
