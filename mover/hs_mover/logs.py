"""Log lines of the daemon: one text line each, or JSON objects for collectors."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

from hs_formats.printable import printable

__all__ = ["LogFormat", "set_up_logging"]

LogFormat = Literal["text", "json"]


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))  # names in scratch and texts of datasets may be anybody's


class _AboveBars(logging.StreamHandler[TextIO]):
    """Writes lines above the bars of `hs_mover.view`."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        try:
            tqdm.write(self.format(record), file=self.stream)
        except Exception:  # noqa: BLE001 - as StreamHandler does
            self.handleError(record)


def set_up_logging(log_format: LogFormat, *, verbose: bool, view: bool = False) -> None:
    """Send hs_mover's lines, and warnings of the libraries below it, to standard error, above the bars of a `view`."""
    handler = _AboveBars(sys.stderr) if view else logging.StreamHandler(sys.stderr)
    text = _Text("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(_Json() if log_format == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("hs_mover").setLevel(logging.DEBUG if verbose else logging.INFO)
