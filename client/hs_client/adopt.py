"""Resume: intents of earlier runs whose records are complete become done without a second request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

import anyio
import anyio.to_thread
import xxhash

from hs_client.errors import PartsLeftBehind, StorageStuck
from hs_client.history import History
from hs_client.preflight import Place, check_mover
from hs_client.scan import Scanner, parts_of_runs
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.index import record_parts
from hs_formats.ledger import Done, Intent
from hs_formats.manifest import ManifestLine
from hs_formats.names import rid_of_part
from hs_formats.part import inspect_part
from hs_formats.stored import read_stored

__all__ = ["Adopted", "find_complete", "wait_drained"]

_POLL_S = 0.5
_LEFT_BEHIND_S = 5.0


@dataclass(frozen=True, slots=True)
class Adopted:
    """A record of an earlier run that counts from now on."""

    key: bytes
    intent: Intent
    lines: tuple[ManifestLine, ...]

    @property
    def done(self) -> Done:
        """The ledger's line for it."""
        return Done(sample_id=self.intent.sample_id, rid=self.intent.rid, adopted=True, content=self.intent.content)


async def wait_drained(
    place: Place, runs: set[str], *, timeout_s: float, left: int, say: Callable[[str], None]
) -> None:
    """Return when the mover has taken every part of `runs` out of scratch.

    Raises:
        NoMover: the mover has gone.
        StorageStuck: nothing was taken for `timeout_s`.
        PartsLeftBehind: the mover cannot take them.
    """
    scratch = place.control.scratch
    fewest = -1
    since_s = anyio.current_time()
    while True:
        parts = await anyio.to_thread.run_sync(parts_of_runs, scratch, runs)
        count = sum(map(len, parts.values()))
        if not count:
            return
        if fewest < 0:
            say(f"waiting for the mover to take {count} parts of earlier runs out of scratch")
        if fewest < 0 or count < fewest:
            fewest, since_s = count, anyio.current_time()
        stuck_s = anyio.current_time() - since_s
        if stuck_s > timeout_s:
            reason = f"{count} parts of earlier runs stay in scratch"
            raise StorageStuck(seconds=stuck_s, reason=reason, left=left, scratch=scratch)
        if stuck_s > _POLL_S:
            mover = await anyio.to_thread.run_sync(check_mover, place)
            if stuck_s > _LEFT_BEHIND_S and mover.left_alone_parts and not mover.backlog_parts:
                name = next(str(part) for found in parts.values() for part in found)
                raise PartsLeftBehind(count=count, name=name)
        await anyio.sleep(_POLL_S)


def find_complete(place: Place, history: History) -> list[Adopted]:
    """Open intents whose records are complete in the manifest with the ids that were sent; at most one a sample.

    Raises:
        OSError: a manifest cannot be read.
    """
    by_rid: dict[str, list[ManifestLine]] = {}
    wanted = {intent.rid for intents in history.open.values() for intent in intents}
    for line in Scanner(place.control, place.paths, history.open_runs).look().lines:
        rid = rid_of_part(line.part)
        if rid in wanted and all(line.part != known.part for known in by_rid.get(rid, [])):
            by_rid.setdefault(rid, []).append(line)
    found: list[Adopted] = []
    for key, intents in history.open.items():
        for intent in sorted(intents, key=lambda intent: intent.rid):
            lines = by_rid.get(intent.rid, [])
            parts = record_parts(intent.n, lines)
            if parts is not None and _same_ids(place.paths, intent, parts, lines):
                found.append(Adopted(key, intent, tuple(lines)))
                break
    return found


def _same_ids(paths: DatasetPaths, intent: Intent, parts: tuple[ManifestLine, ...], lines: list[ManifestLine]) -> bool:
    """The record holds the ids of the intent. One part says so in the manifest; several must be read."""
    hashes = {(line.name.start, line.name.stop): line.ids_xxh3 for line in parts}
    if any(hashes.get((line.name.start, line.name.stop), line.ids_xxh3) != line.ids_xxh3 for line in lines):
        return False
    if len(parts) == 1:
        return parts[0].ids_xxh3 == intent.ids_xxh3
    digest = xxhash.xxh3_128()
    for line in parts:
        try:
            data = read_stored(paths.stored(line.path))
            span = inspect_part(BytesIO(data), line.name).input_ids
        except (OSError, FormatError):
            return False
        digest.update(memoryview(data)[span.offset : span.offset + span.spec.nbytes])
    return digest.hexdigest() == intent.ids_xxh3
