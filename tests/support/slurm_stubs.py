"""Stand-ins for what the Slurm script starts: they note what is asked of them, and do what a test wants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SCRIPT", "SlurmTask", "slurm_variables"]

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "slurm" / "capture.sbatch"

# Each notes a line; `wait_for_term` ends with 0 at SIGTERM, or with what somebody writes into the file NAME.end.
_COMMON = r"""#!/bin/bash
note() { echo "$*" >>"$STUBS/events"; }
wait_for_term() {
    echo $$ >>"$STUBS/pids"
    trap "note $1 SIGTERM; exit \$2" TERM
    set -- "$1" "${2:-0}"
    until [[ -e $STUBS/$1.end ]]; do sleep 0.05; done
    exit "$(<"$STUBS/$1.end")"
}
"""

_PROGRAMS = {
    "hs-mover": r"""
if [[ $1 == status ]]; then [[ -e $STUBS/mover.up ]]; exit; fi
note mover "$@"
if [[ " $* " == *" --once "* ]]; then exit "${ONCE:-0}"; fi
if [[ -n ${MOVER:-} ]]; then echo 'error: the mover says why'; exit "$MOVER"; fi
touch "$STUBS/mover.up"
wait_for_term mover
""",
    "hs-server": r"""
note server "$@"
if [[ -n ${SERVER:-} ]]; then echo 'error: the server says why'; exit "$SERVER"; fi
until [[ -e $STUBS/loaded ]]; do sleep 0.05; done &
loading=$!
trap 'note server SIGTERM; kill $loading; exit 130' TERM
wait $loading
echo "ready http://127.0.0.1:8000"
wait_for_term server
""",
    "hs-client": r"""
note client "$@"
if [[ -n ${CLIENT:-} ]]; then exit "$CLIENT"; fi
wait_for_term client 130
""",
    "squeue": 'echo "${STATE:-RUNNING}"\n',
    "scontrol": 'note scontrol "$@"\nexit "${SCONTROL:-0}"\n',
}


def slurm_variables(task: int, *, of: int, restarts: int = 0) -> dict[str, str]:
    """What Slurm sets for task `task` of an array of `of`, as far as the script looks at it."""
    found = {
        "SLURM_ARRAY_JOB_ID": "77",
        "SLURM_JOB_ID": str(77 + task),
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_ARRAY_TASK_COUNT": str(of),
        "SLURM_ARRAY_TASK_MIN": "0",
        "SLURM_ARRAY_TASK_MAX": str(of - 1),
    }
    return {**found, "SLURM_RESTART_COUNT": str(restarts)} if restarts else found


@dataclass
class SlurmTask:
    """The script among stand-ins, in a folder of its own. `loaded`: whether the server gets ready by itself."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    loaded: bool = True
    scripts: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir()
        for name, text in _PROGRAMS.items():
            path = programs / name
            path.write_text(_COMMON + text)
            path.chmod(0o755)
        (self.folder / "data").mkdir()
        if self.loaded:
            self.touch("loaded")

    def start(self, *arguments: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """The script in the background, by default as task 1 of 3."""
        given = slurm_variables(1, of=3) if variables is None else variables
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "HS_"))}
        full = {
            **clean,
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "STUBS": str(self.folder),
            "TMPDIR": str(self.folder),
            "HS_JOB_MODEL": "/models/M",
            "HS_JOB_DST": str(self.folder / "data"),
            "HS_JOB_LOGS": str(self.folder / "logs"),
            "HS_JOB_SCRATCH": str(self.folder / "scratch"),
            **given,
            **self.environment,
        }
        full = {name: value for name, value in full.items() if value}
        process = subprocess.Popen(
            [str(SCRIPT), *arguments], env=full, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.scripts.append(process)
        return process

    def run(self, *arguments: str, variables: dict[str, str] | None = None) -> tuple[int, str]:
        """Exit code and output of the script, run to its end."""
        process = self.start(*(arguments or ("p.jsonl",)), variables=variables)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    def touch(self, name: str, text: str = "") -> None:
        """Let the stand-ins see the file `name`."""
        (self.folder / name).write_text(text)

    def events(self) -> list[str]:
        """What was asked of the stand-ins, in order."""
        path = self.folder / "events"
        return path.read_text().splitlines() if path.exists() else []

    def requeued(self) -> bool:
        """Slurm was asked to put the task back into the queue."""
        return any(event.startswith("scontrol requeue") for event in self.events())

    def left(self) -> list[int]:
        """Stand-ins that are still alive."""
        path = self.folder / "pids"
        pids = [int(line) for line in path.read_text().split()] if path.exists() else []
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def end(self) -> None:
        """Whatever a failed test has left."""
        for process in self.scripts:
            process.kill()
            process.wait()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
