"""Real throttles around the mover's process: a CPU quota and a limit on what it writes to a disk (cgroup v1 or v2)."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import NotHere

__all__ = ["Throttle", "throttle"]

_PERIOD_US = 100_000
_CPU, _DISK, _UNIFIED = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")


class Throttle:
    """`wrap` puts a command into it; the limits can be changed while it runs."""

    def __init__(self, cpu: Path, disk: Path, device: str) -> None:
        self._cpu = cpu
        self._disk = disk
        self._device = device

    def wrap(self, command: list[str]) -> list[str]:
        """`command`, inside from its first instruction on."""
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; echo $$ > "$1/cgroup.procs"; shift; exec "$@"',
                str(self._cpu), str(self._disk), *command]  # fmt: skip

    def cpu(self, cores: float | None) -> None:
        """So many cores at most; None for all."""
        quota = None if cores is None else int(cores * _PERIOD_US)
        if (self._cpu / "cpu.max").exists():
            (self._cpu / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD_US}")
        else:
            (self._cpu / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    def disk(self, bytes_per_s: int | None) -> None:
        """So many bytes a second to the disk at most; None for all."""
        if (self._disk / "io.max").exists():
            (self._disk / "io.max").write_text(f"{self._device} wbps={'max' if bytes_per_s is None else bytes_per_s}")
        else:
            (self._disk / "blkio.throttle.write_bps_device").write_text(f"{self._device} {bytes_per_s or 0}")


@contextmanager
def throttle(folder: Path) -> Iterator[Throttle]:
    """Groups of our own; `folder` lies on the disk that can be slowed down.

    Raises:
        NotHere: no such groups can be made.
    """
    name = f"hs-soak-{os.getpid()}"
    roots = [_CPU, _DISK] if (_CPU / "cpu.cfs_quota_us").exists() or _CPU.is_dir() else [_UNIFIED]
    made: list[Path] = []
    try:
        try:
            for root in roots:
                (root / name).mkdir()
                made.append(root / name)
            found = Throttle(made[0], made[-1], _whole_disk(folder))
            found.cpu(None)
            found.disk(None)
        except OSError as error:
            raise NotHere(f"no cgroup for throttles can be made ({error}): run it as root") from error
        yield found
    finally:
        for path in made:
            for _ in range(100):
                with contextlib.suppress(OSError):
                    path.rmdir()
                    break
                time.sleep(0.05)


def _whole_disk(folder: Path) -> str:
    """Numbers of the disk under `folder`, not of its partition: throttles know only disks."""
    device = folder.stat().st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    at = Path(f"/sys/dev/block/{numbers}")
    if (at / "partition").exists():
        return (at.resolve().parent / "dev").read_text(encoding="ascii").strip()
    return numbers
