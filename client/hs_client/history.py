"""What earlier runs of a dataset left: samples that are done or rejected, and intents whose outcome nobody noted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from hs_client.rows import digest
from hs_formats.dataset import DatasetPaths
from hs_formats.ledger import Done, Failed, Intent, Rejected, iter_ledger
from hs_formats.names import run_of_rid

__all__ = ["History", "read_history"]


@dataclass(slots=True)
class History:
    """State of every sample that some ledger of the dataset names, by `hs_client.rows.digest` of its id.

    Attributes:
        done: samples that must never be sent again.
        rejected: samples that can never be done, with the reason.
        open: intents without an outcome of samples that are not done, in the order in which they were written.
        runs: ids of all runs that have a ledger.
    """

    done: set[bytes] = field(default_factory=set)
    rejected: dict[bytes, str] = field(default_factory=dict)
    open: dict[bytes, list[Intent]] = field(default_factory=dict)
    runs: set[str] = field(default_factory=set)

    @property
    def open_runs(self) -> set[str]:
        """Runs that have open intents."""
        return {run_of_rid(intent.rid) for intents in self.open.values() for intent in intents}


def read_history(paths: DatasetPaths, *, live_runs: Collection[str] = ()) -> History:
    """Read every ledger of the dataset, flat in memory but for one digest a sample.

    Intents of `live_runs`, other clients at work on this dataset just now, are theirs to finish and are left out.

    Raises:
        OSError: a ledger cannot be read.
    """
    history = History()
    for path in sorted(paths.ledger.glob("*.jsonl")):
        run = path.stem
        history.runs.add(run)
        pending: dict[str, Intent] = {}
        for line in iter_ledger(path):
            match line:
                case Intent():
                    pending[line.rid] = line
                case Done():
                    pending.pop(line.rid, None)
                    history.done.add(digest(line.sample_id))
                case Failed():
                    pending.pop(line.rid, None)
                case Rejected(sample_id=sample_id) if sample_id:
                    history.rejected[digest(sample_id)] = line.reason
                case _:
                    pass
        if run not in live_runs:
            for intent in pending.values():
                history.open.setdefault(digest(intent.sample_id), []).append(intent)
    for key in history.done:
        history.open.pop(key, None)
        history.rejected.pop(key, None)
    return history
