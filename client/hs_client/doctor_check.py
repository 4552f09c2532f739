"""Before a run: has the server passed `hs-server doctor`? If not, have it examined.

The examination runs in a process of its own, because it belongs to the server's package.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from hs_client.preflight import ServerFacts
from hs_formats.control import ControlFolder
from hs_formats.doctor_pass import has_passed
from hs_formats.errors import HsError, PreflightError, ServerLost, StorageError

__all__ = ["ensure_examined"]

_ERRORS: dict[int, type[HsError]] = {error.exit_code: error for error in (PreflightError, ServerLost, StorageError)}
_INTERRUPTED = 130


def ensure_examined(server: ServerFacts, control: ControlFolder, *, skip: bool, say: Callable[[str], object]) -> None:
    """Return once the server's present launch has passed the doctor; with `skip`, say loudly that nobody looked.

    Raises:
        HsError: it did not pass, with the doctor's exit code and words.
        KeyboardInterrupt: the user interrupted the examination.
    """
    if has_passed(control, port=server.port, nonce=server.marker.nonce):
        return
    if skip:
        say("doctor     NOT RUN (--no-doctor): nobody has seen that this server's states are right")
        return
    say("doctor     no pass of this server is on record: examining it")
    command = [sys.executable, "-m", "hs_server.cli", "doctor", "--server", server.url]
    done = subprocess.run(
        [*command, "--dump-dir", str(control.scratch)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode != 0:
        words = done.stderr.strip().removeprefix("error: ") or f"hs-server doctor ended with code {done.returncode}"
        raise _ERRORS.get(done.returncode, PreflightError)(words)
    for line in done.stdout.splitlines()[1:]:
        say(line)
