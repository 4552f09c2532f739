"""`hs-server doctor`: from the command line, or from a client that finds no fresh pass, to one examination."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hs_formats.control import default_scratch
from hs_formats.errors import UsageError
from hs_formats.state import state_folder
from hs_server.arguments import flag_value
from hs_server.doctor.examine import Target, examine, pass_lines
from hs_server.doctor.session import Times
from hs_server.records import LaunchRecord, RecordStore

if TYPE_CHECKING:
    from hs_server.plan import LaunchPlan

__all__ = ["API_KEY_VARIABLE", "DoctorOptions", "doctor", "launched_target"]

API_KEY_VARIABLE = "HS_API_KEY"

_DEFAULT_URL = "http://127.0.0.1:8000"
_LOCAL = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """What the command line said; None and empty: whatever server runs here, and its own scratch."""

    server: str = ""
    dump_dir: Path | None = None
    times: Times = field(default_factory=Times)


def doctor(options: DoctorOptions, environment: Mapping[str, str]) -> int:
    """Examine a server and print its pass; returns 0.

    Raises:
        HsError: it does not pass, or could not be examined.
        UsageError: several servers run here and none was named.
    """
    record = _find(options.server, RecordStore(state_folder(environment)).all())
    url = options.server or (record.url if record is not None else _DEFAULT_URL)
    scratch = options.dump_dir
    known = record is not None and (scratch is None or scratch.absolute() == Path(record.dump_dir))
    if record is not None and known:
        if not record.capturing:
            raise UsageError(f"the server at {url} was launched with --no-capture: there is nothing to examine")
        scratch = Path(record.dump_dir)
    target = Target(
        url=url.rstrip("/"),
        scratch=(scratch or default_scratch(environment)).absolute(),
        api_key=environment.get(API_KEY_VARIABLE, ""),
        nonce=record.nonce if record is not None and known else "",
        ranks=record.local_ranks if record is not None and known else 0,
        times=options.times,
    )
    _say(f"doctor    examines {target.url}, scratch {target.scratch}")
    for line in pass_lines(examine(target, say=_say)):
        _say(line)
    return 0


def launched_target(plan: LaunchPlan) -> Target:
    """The server of a launch that captures, on this machine.

    Raises:
        ValueError: the launch captures nothing.
    """
    if plan.request.capture is None:
        raise ValueError("a launch without capture")
    return Target(
        url=plan.url,
        scratch=plan.request.capture.dump_dir.absolute(),
        api_key=flag_value(plan.request.pass_through, "--api-key") or plan.environment.get(API_KEY_VARIABLE, ""),
        nonce=plan.nonce,
        ranks=plan.topology.local_ranks,
    )


def _find(server: str, records: list[LaunchRecord]) -> LaunchRecord | None:
    """The record of the server that is meant, where it was launched here.

    Raises:
        UsageError: several were, and none is named.
    """
    if server:
        try:
            parts = urlsplit(server)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"--server {server}: {error}") from None
        near = parts.hostname in _LOCAL
        return next((record for record in records if near and record.port == port), None)
    if len(records) > 1:
        urls = ", ".join(record.url for record in records)
        raise UsageError(f"several servers are running\n  choose one with --server: {urls}")
    return records[0] if records else None


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
