"""One operation on one dataset in a process of its own, its cost printed as JSON.

Usage: python -m benchmarks.scaling.ops NAME DATASET, or credit SCRATCH TAKES
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.checkout import make_importable

make_importable()

from hs_formats.dataset import DatasetPaths  # noqa: E402 - its path has just been made
from hs_formats.index import DatasetIndex  # noqa: E402
from hs_formats.manifest import ManifestReader  # noqa: E402

__all__ = ["OPERATIONS", "PAYLOAD_OPERATIONS"]

_NEED_BYTES = 100_000


def _memory(what: str) -> int:
    """Of this process, in bytes: ``VmRSS`` now, ``VmHWM`` the most since it began (getrusage tells its parent's)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def _history(root: Path) -> Callable[[], int]:
    from hs_client.history import read_history

    return lambda: len(read_history(DatasetPaths(root)).done)


def _manifest(root: Path) -> Callable[[], int]:
    return lambda: len(ManifestReader(DatasetPaths(root).manifest).poll())


def _index(root: Path) -> Callable[[], int]:
    return lambda: len(DatasetIndex.load(DatasetPaths(root)).samples)


def _reader(root: Path) -> Callable[[], int]:
    from hs_formats.reader import HiddenStateDataset

    return lambda: len(HiddenStateDataset(root))


def _mover_books(root: Path) -> Callable[[], int]:
    """What a mover reads of a dataset when it starts, and when it meets a run for the first time."""
    from benchmarks.scaling.made import RUN
    from hs_mover.books import Books, noted_names

    def run() -> int:
        paths = DatasetPaths(root)
        names = noted_names(paths, {RUN}, turn=lambda: None)
        Books(paths, "bench-src", make=lambda _: None, doubtful=set()).load_run(RUN, ())
        return len(names[RUN])

    return run


def _status(root: Path) -> Callable[[], int]:
    from hs_client.status_command import dataset_lines

    return lambda: _first_number("samples", list(dataset_lines(root, root / "no scratch")))


def _info(root: Path) -> Callable[[], int]:
    from hs_client.info_command import info_lines

    return lambda: _first_number("samples", list(info_lines(root)))


def _first_number(what: str, lines: list[str]) -> int:
    return next(int(line.split()[1].replace(",", "")) for line in lines if line.startswith(what))


def _verify(root: Path) -> Callable[[], int]:
    from hs_client.verify.run import verify

    paths = DatasetPaths(root)
    info = paths.read_info()
    assert info is not None

    def run() -> int:
        found = verify(paths, info)
        if found.bad:
            raise SystemExit(f"verify finds {len(found.bad)} faults in what is right, the first: {found.bad[0]}")
        found.mark(paths)
        return len(found.verified)

    return run


OPERATIONS: dict[str, Callable[[Path], Callable[[], int]]] = {
    "history": _history,
    "manifest": _manifest,
    "index": _index,
    "reader": _reader,
    "mover start": _mover_books,
    "status": _status,
    "info": _info,
}
"""Each prepares (imports, what does not count) and gives the work, which returns the samples that it has seen."""

PAYLOAD_OPERATIONS: dict[str, Callable[[Path], Callable[[], int]]] = {"verify": _verify}
"""The same for those that read stored files."""


def _credit(scratch: Path, takes: int) -> Callable[[], int]:
    """A client that takes credit for a request and has it back at once, `takes` times."""
    import anyio

    from hs_client.credits import CreditKeeper
    from hs_formats.control import ControlFolder, RunState

    run = f"{int.from_bytes(time.monotonic_ns().to_bytes(8, 'big')[-4:], 'big') | 1:08x}"

    async def work() -> int:
        control = ControlFolder(scratch)
        control.register_run(RunState(run=run, dataset="bench", pid=1))
        keeper = CreditKeeper(control, run, outstanding=lambda: 0)
        granted = 0
        try:
            while granted < takes:
                if (await keeper.take(_NEED_BYTES)).verdict == "grant":
                    granted += 1
                else:
                    await anyio.sleep(0.01)
        finally:
            keeper.close(remove=True)
        return granted

    return lambda: anyio.run(work)


def _measured(work: Callable[[], int]) -> dict[str, float]:
    before = _memory("VmRSS:")
    cpu_s, began_s = time.process_time(), time.perf_counter()
    seen = work()
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    grown = max(0, _memory("VmHWM:") - before)
    return {"seen": seen, "seconds": round(seconds, 4), "cpu_s": round(cpu_s, 4), "peak_bytes": grown}


if __name__ == "__main__":
    name, folder, *more = sys.argv[1:]
    if name == "credit":
        prepared = _credit(Path(folder), int(more[0]))
    else:
        prepared = {**OPERATIONS, **PAYLOAD_OPERATIONS}[name](Path(folder))
    sys.stdout.write(json.dumps(_measured(prepared)) + "\n")
