"""What earlier runs of a dataset left: samples that are done or rejected, and intents whose outcome nobody noted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from hs_client.digests import DigestTable
from hs_client.rows import digest
from hs_formats.dataset import DatasetPaths
from hs_formats.hashing import content_number
from hs_formats.ledger import Done, Failed, Intent, Rejected, RunStarted, iter_ledger
from hs_formats.names import run_of_rid

__all__ = ["History", "RunRate", "read_history"]


class RunRate(NamedTuple):
    """What a run got done: when it began (seconds since the epoch), how long its ledger grew, tokens of its samples."""

    started_s: float
    spent_s: float
    tokens: int


@dataclass(slots=True)
class History:
    """State of every sample that some ledger of the dataset names, by `hs_client.rows.digest` of its id.

    Attributes:
        done: samples that must never be sent again, with the row's `content` as a number, 0 where no ledger has it.
        rejected: samples that can never be done, with the reason.
        content: the same of samples that were rejected.
        short: of samples rejected because of the server's context length, that length.
        open: intents without an outcome of samples that are not done, in the order in which they were written.
        runs: ids of all runs that have a ledger.
        rates: how fast they were.
        ledger_bytes: how much of each ledger was read at least, by file name; it may end in half a line.
    """

    done: DigestTable = field(default_factory=DigestTable)
    rejected: dict[bytes, str] = field(default_factory=dict)
    content: dict[bytes, int] = field(default_factory=dict)
    short: dict[bytes, int] = field(default_factory=dict)
    open: dict[bytes, list[Intent]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)
    rates: list[RunRate] = field(default_factory=list)
    ledger_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def open_runs(self) -> set[str]:
        """Runs that have open intents."""
        return {run_of_rid(intent.rid) for intents in self.open.values() for intent in intents}

    def changed(self, key: bytes, content: int) -> bool:
        """The row that was rejected under this id was another one; `content` 0: nobody can say."""
        known = self.content.get(key, 0)
        return bool(content and known) and known != content

    def drop_changed(self, key: bytes, content: int) -> None:
        """Forget open intents for other rows than the one of `content`: their records must not be adopted for it."""
        if key not in self.open:
            return
        kept = [i for i in self.open[key] if content_number(i.content) in (0, content)]
        if kept:
            self.open[key] = kept
        else:
            self.open.pop(key, None)


def read_history(paths: DatasetPaths, *, live_runs: Collection[str] = ()) -> History:
    """Read every ledger of the dataset, flat in memory but for one digest a sample.

    Intents of `live_runs`, other clients at work on this dataset just now, are theirs to finish and are left out.

    Raises:
        OSError: a ledger cannot be read.
    """
    history = History()
    turned_down: dict[bytes, int] = {}
    unannounced: list[tuple[bytes, Done]] = []
    failed: set[str] = set()  # attempts given up; the record of one may have come late
    for path in sorted(paths.ledger.glob("*.jsonl")):
        run = path.stem
        history.runs.add(run)
        history.ledger_bytes[path.name] = path.stat().st_size
        pending: dict[str, Intent] = {}
        started_at, tokens = "", 0
        for line in iter_ledger(path):
            match line:
                case Intent():
                    pending[line.rid] = line
                case Done():
                    intent = pending.pop(line.rid, None)
                    tokens += 0 if intent is None else intent.n
                    key = digest(line.sample_id)
                    if intent is None and line.rid not in failed:
                        unannounced.append((key, line))
                    else:
                        _note_done(history, key, line)
                case Failed():
                    if pending.pop(line.rid, None) is not None:
                        failed.add(line.rid)
                case Rejected(sample_id=sample_id) if sample_id:
                    key = digest(sample_id)
                    history.rejected[key] = line.reason
                    turned_down.pop(key, None)
                    if line.content:
                        turned_down[key] = content_number(line.content)
                    history.short[key] = line.context_tokens
                case RunStarted():
                    started_at = line.started_at
                case _:
                    pass
        if (rate := _rate(path, started_at, tokens)) is not None:
            history.rates.append(rate)
        if run not in live_runs:
            for intent in pending.values():
                history.open.setdefault(digest(intent.sample_id), []).append(intent)
    for key, line in unannounced:
        # An adopted record has its intent in another ledger. One whose intent is lost is no sample to `DatasetIndex`.
        if any(intent.rid == line.rid for intent in history.open.get(key, [])):
            _note_done(history, key, line)
    for key in [key for key in history.open if key in history.done]:
        del history.open[key]
    for key in [key for key in history.rejected if key in history.done]:
        del history.rejected[key]
    for key in history.rejected:
        if key in turned_down:
            history.content[key] = turned_down[key]
    return history


def _note_done(history: History, key: bytes, line: Done) -> None:
    # Of two records the first one counts, for `DatasetIndex` too: what that is of is what is done.
    if not history.done.get(key):
        history.done[key] = content_number(line.content)


def _rate(path: Path, started_at: str, tokens: int) -> RunRate | None:
    try:
        started_s = datetime.fromisoformat(started_at).timestamp()
        return RunRate(started_s, path.stat().st_mtime - started_s, tokens)
    except (ValueError, OSError):
        return None
