"""Reading from a forked process: its requests go to a fresh interpreter, which answers over a pipe.

A fork takes one thread along and none of obstore's, so that a DataLoader's worker would wait for ever. Run as a module,
this is the other end: JSON requests in, an eight-byte length and the bytes, or an error as JSON, out.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

from hs_formats.location import ObjectUrl, parse_location
from hs_formats.objectstore.store import Listed, StoreError

__all__ = ["ForkedReader"]

_HEAD = struct.Struct("<BQ")


class ForkedReader:
    """One interpreter, started at the first request and ended with this process: its input closes then.

    Every method raises what `DatasetStore` says.
    """

    def __init__(self, url: ObjectUrl) -> None:
        self.pid = os.getpid()
        self._url = url
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: str) -> bytes:
        """All of an object."""
        return self._ask(["read", path])

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """A range of it."""
        return self._ask(["read_range", path, start, count])

    def head(self, path: str) -> Listed:
        """Size and time of it."""
        return Listed(**json.loads(self._ask(["head", path])))

    def _ask(self, request: list[Any]) -> bytes:
        with self._lock:
            try:
                process = self._started()
                into, out = process.stdin, process.stdout
                if into is None or out is None:
                    raise OSError("no pipe")
                into.write(json.dumps(request).encode() + b"\n")
                into.flush()
                failed, size = _HEAD.unpack(_exactly(out, _HEAD.size))
                body = _exactly(out, size)
            except (OSError, EOFError) as error:
                self._process = None
                raise StoreError(f"the process that reads for this one has ended ({error})", self._url) from None
        if failed:
            number, reason, name = json.loads(body)
            if number == 2:
                raise FileNotFoundError(number, reason, name)
            raise StoreError(reason, name, number)
        return body

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hs_formats.objectstore.forked", str(self._url)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        return self._process


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("no answer")
    return data


def _serve(url: ObjectUrl) -> None:
    from hs_formats.objectstore.remote import open_store

    store = open_store(url)
    calls: dict[str, Callable[..., bytes]] = {
        "read": store.read,
        "read_range": store.read_range,
        "head": lambda path: json.dumps(asdict(store.head(path))).encode(),
    }
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        name, *arguments = json.loads(line)
        failed, body = 0, b""
        try:
            body = calls[name](*arguments)
        except OSError as error:
            failed, body = 1, json.dumps([error.errno or 5, error.strerror or str(error), error.filename]).encode()
        out.write(_HEAD.pack(failed, len(body)))
        out.write(body)
        out.flush()


if __name__ == "__main__":
    target = parse_location(sys.argv[1])
    if isinstance(target, ObjectUrl):
        _serve(target)
