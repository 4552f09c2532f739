"""What one `hs-client run` was told, and where it looks when it was told nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from hs_client.chat_options import ChatOptions
from hs_client.generate.options import GenerateOptions
from hs_client.input_files import STDIN
from hs_formats.control import DEFAULT_SCRATCH
from hs_formats.dataset import DatasetInfo, check_dataset_name
from hs_formats.errors import FormatError, UsageError

__all__ = [
    "DEFAULT_SERVER",
    "Endpoint",
    "RunSettings",
    "dataset_name",
    "parse_servers",
    "parse_shard",
    "server_port",
]

DEFAULT_SERVER = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's URL, and the scratch folder that it writes to."""

    url: str
    scratch: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Settings of one run. Time-outs are in seconds.

    `part_timeout_s`: how long after an answer its parts may be missing. `mover_timeout_s`: how long nothing may move.
    `server_timeout_s`: how long the server may be lost. `max_retries`: attempts after the first that a sample gets.
    `concurrency`: requests in flight to each server. `retry_rejected`: look again at rows that earlier runs rejected.
    `command`: what the user typed, to be repeated. `summary_json`: where the summary goes for programs.
    `max_length`: tokens of a sample, longer ones are rejected, or with `truncate` cut.
    `force`: go on where the plan does not fit. `generate`: the server answers the rows first; None: it does not.
    `leases`: descriptor of the socket by which rows are leased (`hs_client.leases`); None: all are this run's.
    """

    files: Sequence[Path]
    servers: Sequence[Endpoint] = (Endpoint(DEFAULT_SERVER, DEFAULT_SCRATCH),)
    dataset: str = ""
    tokenizer: str = ""
    trust_remote_code: bool = False
    chat: ChatOptions = field(default_factory=ChatOptions)
    max_length: int | None = None
    truncate: bool = False
    force: bool = False
    generate: GenerateOptions | None = None
    concurrency: int = 64
    part_timeout_s: float = 60.0
    mover_timeout_s: float = 600.0
    server_timeout_s: float = 300.0
    request_timeout_s: float = 1800.0
    max_retries: int = 2
    limit: int | None = None
    shard: tuple[int, int] = (0, 1)
    dry_run: bool = False
    doctor: bool = True
    progress_interval_s: float = 10.0
    admission: bool = True
    retry_rejected: bool = False
    summary_json: Path | None = None
    command: str = ""
    leases: int | None = None

    def describe(self, info: DatasetInfo) -> DatasetInfo:
        """`info` with what decides about records: those made with other settings do not belong into one dataset."""
        return replace(self.chat.describe(info), generation="" if self.generate is None else self.generate.described)


def dataset_name(given: str, files: Sequence[Path]) -> str:
    """Name of the dataset: as given, else that of the first prompts file.

    Raises:
        UsageError: it cannot be a folder's name.
    """
    if not given and files[0] == STDIN:
        raise UsageError("standard input has no name: name the dataset with --dataset")
    name = given or files[0].name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl").removesuffix(".json")
    try:
        return check_dataset_name(name)
    except FormatError as error:
        raise UsageError(f"{error}; name it with --dataset") from None


def parse_servers(given: Sequence[str], scratch: Path) -> tuple[Endpoint, ...]:
    """``URL`` or ``URL=SCRATCH`` each; `scratch` is that of servers without one of their own.

    Raises:
        UsageError: it is not that, or one is given twice.
    """
    found: dict[str, Endpoint] = {}
    for text in given:
        url, _, folder = text.partition("=")
        url = url.rstrip("/")
        server_port(url)
        if url in found:
            raise UsageError(f"--server {url} is given twice")
        found[url] = Endpoint(url, Path(folder).absolute() if folder else scratch.absolute())
    return tuple(found.values())


def server_port(url: str) -> int:
    """The port of the server's URL.

    Raises:
        UsageError: the URL is none.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--server {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--server {url}: give a URL such as {DEFAULT_SERVER}")
    return port or {"http": 80, "https": 443}[parts.scheme]


def parse_shard(text: str) -> tuple[int, int]:
    """``i/n`` as (i, n), with 0 <= i < n.

    Raises:
        UsageError: it is not that.
    """
    match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text, re.ASCII)
    if match is None or int(match[1]) >= int(match[2]):
        raise UsageError(f"--shard {text}: give i/n with i from 0 to n-1, such as 0/4")
    return int(match[1]), int(match[2])
