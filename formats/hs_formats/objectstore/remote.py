"""`DatasetStore` over obstore: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage.

obstore signs, checks and retries (with jitter and growing pauses); here is what it is asked for, and its errors as
ours. Its threads do not outlive a fork, so a forked process hands its requests to a fresh interpreter:
`hs_formats.objectstore.forked`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

from hs_formats.errors import PreflightError
from hs_formats.location import ObjectUrl
from hs_formats.objectstore.forked import ForkedReader
from hs_formats.objectstore.settings import store_settings
from hs_formats.objectstore.store import DatasetStore, Listed, StoreError, StoreUnreachable

__all__ = ["WHOLE_BYTES", "RemoteStore", "open_store"]

WHOLE_BYTES = 32 << 20
"""Objects up to this size are sent in one conditional request; larger ones in parts."""

_PART_BYTES = 16 << 20  # of 10,000 parts at most: objects up to 160 GB
_PARTS_AT_ONCE = 4
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3}[^:\n]*)")
_REASON = re.compile(r" - ([^\n]+)")

_runtime_pid = 0
"""The process that has started obstore's threads."""


def open_store(url: ObjectUrl) -> DatasetStore:
    """The store behind `url`. Makes no request.

    Raises:
        PreflightError: obstore is missing, or the environment says something that cannot be.
    """
    return RemoteStore(url)


class RemoteStore:
    """See `DatasetStore`. May be pickled, and used in forked processes for reading."""

    def __init__(self, url: ObjectUrl) -> None:
        self._url = url
        self._settings = store_settings(url.scheme)
        try:
            import obstore
        except ImportError:
            raise PreflightError(f"{url} needs obstore: pip install 'hs-extract[s3]'") from None
        self._obstore: Any = obstore
        self._forked: ForkedReader | None = None

    def __reduce__(self) -> tuple[type[RemoteStore], tuple[ObjectUrl]]:
        return RemoteStore, (self._url,)

    @property
    def url(self) -> ObjectUrl:
        """Below which everything lies."""
        return self._url

    def list(self, folder: str = "", *, deep: bool = True) -> Iterator[Listed]:
        """See `DatasetStore`."""
        found: list[Any] = []
        prefix = folder.rstrip("/") + "/" if folder else None
        try:
            if deep:
                for group in self._obstore.list(self._store, prefix):
                    found += group
            else:
                found = self._obstore.list_with_delimiter(self._store, prefix)["objects"]
        except Exception as error:  # noqa: BLE001 - obstore has many
            self._tell(error, folder)
        return (self._listed(entry) for entry in found)

    def read(self, path: str) -> bytes:
        """See `DatasetStore`."""
        if (forked := self._other_process()) is not None:
            return forked.read(path)
        try:
            return bytes(self._obstore.get(self._store, path).bytes())
        except Exception as error:  # noqa: BLE001
            self._tell(error, path)

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """See `DatasetStore`."""
        if count <= 0:
            return b""
        if (forked := self._other_process()) is not None:
            return forked.read_range(path, start, count)
        try:
            return bytes(self._obstore.get_range(self._store, path, start=start, length=count))
        except Exception as error:  # noqa: BLE001
            self._tell(error, path)

    def head(self, path: str) -> Listed:
        """See `DatasetStore`."""
        if (forked := self._other_process()) is not None:
            return forked.head(path)
        try:
            return self._listed(self._obstore.head(self._store, path))
        except Exception as error:  # noqa: BLE001
            self._tell(error, path)

    def create(self, path: str, data: bytes | bytearray) -> bool:
        """See `DatasetStore`."""
        try:
            self._obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except self._already_there:
            return False
        except Exception as error:  # noqa: BLE001
            self._tell(error, path)
        return True

    def put(self, path: str, data: bytes) -> None:
        """See `DatasetStore`."""
        try:
            self._obstore.put(self._store, path, data, use_multipart=False)
        except Exception as error:  # noqa: BLE001
            self._tell(error, path)

    def upload(
        self,
        path: str,
        pieces: Iterable[bytes | memoryview],
        *,
        temporary: str,
        check: Callable[[], None] = lambda: None,
    ) -> int | None:
        """See `DatasetStore`."""
        stream = iter(pieces)
        data = bytearray()
        for piece in stream:
            data += piece  # a copy: a piece may be of memory that the next one overwrites
            if len(data) > WHOLE_BYTES:
                return self._upload_large(path, chain([memoryview(data)], stream), temporary, check)
        check()
        return len(data) if self.create(path, data) else None

    def _upload_large(
        self, path: str, pieces: Iterator[bytes | memoryview], temporary: str, check: Callable[[], None]
    ) -> int | None:
        size = self._send_parts(temporary, pieces)
        try:
            check()
            stored = self.head(temporary).size_bytes
            if stored != size:
                raise StoreError(f"{stored} bytes are stored where {size} were sent", self._url / temporary)
            try:
                self._obstore.copy(self._store, temporary, path, overwrite=False)
            except self._already_there:
                return None
            except Exception as error:  # noqa: BLE001
                self._tell(error, path)
            return size
        finally:
            self.delete([temporary])

    def _send_parts(self, path: str, pieces: Iterator[bytes | memoryview]) -> int:
        sent = _Counted(pieces)
        try:
            self._obstore.put(
                self._store,
                path,
                iter(sent),
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except Exception as error:  # noqa: BLE001
            if sent.error is not None:
                raise sent.error from None
            self._tell(error, path)
        return sent.size

    def delete(self, paths: Iterable[str]) -> None:
        """See `DatasetStore`."""
        try:
            for path in paths:
                try:
                    self._obstore.delete(self._store, path)
                except FileNotFoundError:
                    continue
        except Exception as error:  # noqa: BLE001
            self._tell(error, "")

    # -- behind it

    @cached_property
    def _store(self) -> Any:
        global _runtime_pid
        _runtime_pid = _runtime_pid or os.getpid()
        stores, url, settings = self._obstore.store, self._url, self._settings
        shared: dict[str, Any] = {
            "prefix": url.key or None,
            "client_options": {"allow_http": settings.allow_http, "connect_timeout": "10s", "timeout": "120s"},
            "retry_config": {
                "max_retries": 1000 if settings.retry_s else 0,
                "retry_timeout": timedelta(seconds=settings.retry_s),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=5),
                    "base": 2,
                },
            },
        }
        if settings.endpoint:
            shared["endpoint" if url.scheme != "gs" else "base_url"] = settings.endpoint
        try:
            if url.scheme == "s3":
                # SHA-256 of each request's body goes along and is checked by the store before it acknowledges.
                options = {"checksum_algorithm": "SHA256", "copy_if_not_exists": "multipart"}
                return stores.S3Store(url.bucket, **shared, **options)
            if url.scheme == "gs":
                return stores.GCSStore(url.bucket, **shared)
            return stores.AzureStore(container_name=url.bucket, **shared)
        except Exception as error:  # noqa: BLE001
            raise PreflightError(f"{url}: {_short(str(error))}") from None

    @cached_property
    def _already_there(self) -> type[Exception]:
        kind: type[Exception] = self._obstore.exceptions.AlreadyExistsError
        return kind

    def _other_process(self) -> ForkedReader | None:
        if _runtime_pid in (0, os.getpid()):
            return None
        if self._forked is None or self._forked.pid != os.getpid():
            self._forked = ForkedReader(self._url)
        return self._forked

    def _listed(self, entry: Any) -> Listed:
        return Listed(entry["path"], entry["size"], entry["last_modified"].timestamp(), entry["e_tag"] or "")

    def _tell(self, error: Exception, path: str) -> NoReturn:
        text = str(error)
        exceptions = self._obstore.exceptions
        where = self._url / path if path else self._url
        code = _CODE.search(text)
        if code is not None and code[1] == "NoSuchBucket":
            raise StoreError(f"there is no bucket {self._url.bucket}", where) from None
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "there is no such object", str(where)) from None
        if isinstance(error, (PreflightError, StoreError)):
            raise error
        status = _STATUS.search(text)
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)) or (
            status is not None and status[1][:3] in ("401", "403")
        ):
            raise StoreError(
                f"access is denied ({_short(text)}) to the credentials in this environment", where, 13
            ) from None
        if "HTTP error" in text or "error sending request" in text or (status is not None and status[1][0] == "5"):
            endpoint = self._settings.endpoint.rpartition("@")[2] or "the provider's own endpoint, as none is set here"
            raise StoreUnreachable(f"{_short(text)} at {endpoint}", where) from None
        raise StoreError(_short(text), where) from None


class _Counted:
    """Passes pieces on, and keeps their size and what went wrong in making them."""

    def __init__(self, pieces: Iterator[bytes | memoryview]) -> None:
        self.size = 0
        self.error: BaseException | None = None
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._pieces:
                self.size += len(piece)
                yield bytes(piece)
        except BaseException as error:
            self.error = error
            raise


def _short(text: str) -> str:
    """The one line of obstore's report that says what happened."""
    line = text.partition("\n\nDebug source")[0]
    status, code, reason = _STATUS.search(line), _CODE.search(line), _REASON.search(line)
    if status is not None:
        return status[1].strip() + (f", {code[1]}" if code is not None else "")
    if reason is not None:
        return reason[1].strip()
    return line.strip().split("\n")[0][:200]
