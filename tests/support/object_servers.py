"""An S3 server for tests (moto, as a process of its own), a proxy in front of it that makes trouble, and plain access.

The checker's side, `Bucket`, is boto3 alone: nothing of the project's own code for object stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launching import free_port

__all__ = ["Bucket", "FaultProxy", "MotoServer", "fault_proxy", "moto_server"]

_KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "no-secret", "AWS_REGION": "us-east-1"}


@dataclass
class Bucket:
    """A bucket as boto3 sees it."""

    name: str
    client: Any

    def keys(self, prefix: str = "") -> list[str]:
        """Every key below `prefix`, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))

    def get(self, key: str) -> bytes:
        """An object."""
        return bytes(self.client.get_object(Bucket=self.name, Key=key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        """Make or replace an object."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def put_tree(self, prefix: str, folder: Path) -> None:
        """Every file below `folder`, as any tool would copy them."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder)}", path.read_bytes())

    def unfinished(self) -> int:
        """Multipart uploads that were begun and neither completed nor aborted."""
        return len(self.client.list_multipart_uploads(Bucket=self.name).get("Uploads") or [])


@dataclass
class MotoServer:
    """A running server with one bucket."""

    port: int
    process: subprocess.Popen[bytes]
    bucket: Bucket

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What a command needs to reach it, or the proxy at `port`."""
        return {**_KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}"}

    def freeze(self) -> None:
        """SIGSTOP: connections are taken and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def moto_server(bucket: str = "hs-tests") -> Iterator[MotoServer]:
    """A server for the length of a block, on a free port of 127.0.0.1; what it holds is in its memory alone."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=_KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=_KEYS["AWS_SECRET_ACCESS_KEY"],
            region_name=_KEYS["AWS_REGION"],
            config=Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=60),
        )
        end = time.monotonic() + 60
        while True:
            try:
                client.create_bucket(Bucket=bucket)
                break
            except (BotoCoreError, ClientError):
                assert process.poll() is None, "the S3 server has ended"
                assert time.monotonic() < end, "the S3 server does not start"
                time.sleep(0.1)
        yield MotoServer(port, process, Bucket(bucket, client))
        client.close()
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@dataclass
class FaultProxy:
    """What the proxy does to requests; may be changed at any moment.

    Attributes:
        errors: share of requests that are answered with 500 instead of being passed on.
        lost: share of requests that are passed on and whose answer never comes: the connection is cut.
        delay_s: pause before each request.
        down: connections are cut at once.
    """

    port: int = 0
    errors: float = 0.0
    lost: float = 0.0
    delay_s: float = 0.0
    down: bool = False
    seen: int = 0
    spoiled: int = 0
    chance: random.Random = field(default_factory=lambda: random.Random(7))


_ERROR = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/xml\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s"
)
_BODY = b"<Error><Code>InternalError</Code><Message>made up</Message></Error>"


@contextlib.contextmanager
def fault_proxy(server: MotoServer) -> Iterator[FaultProxy]:
    """A proxy in front of `server`, in a thread of this process. One request a connection."""
    proxy = FaultProxy()
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        listener = await asyncio.start_server(lambda *pair: _handle(proxy, server.port, *pair), "127.0.0.1", 0)
        proxy.port = listener.sockets[0].getsockname()[1]
        started.set()
        async with listener:
            await listener.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        for left in asyncio.all_tasks(loop):
            left.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                loop.run_until_complete(left)
        loop.close()

    task = loop.create_task(serve())
    thread = threading.Thread(target=run, name="fault-proxy")
    thread.start()
    assert started.wait(20)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


async def _handle(proxy: FaultProxy, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        if not proxy.down:
            await _one_request(proxy, port, reader, writer)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _one_request(
    proxy: FaultProxy, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    kept: list[bytes] = []
    for line in head[:-4].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        if name.lower() == b"expect":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif name.lower() != b"connection":
            kept.append(line)
    body = await reader.readexactly(length)
    proxy.seen += 1
    await asyncio.sleep(proxy.delay_s)
    draw = proxy.chance.random()
    if proxy.down or draw < proxy.errors:
        proxy.spoiled += 1
        if not proxy.down:
            writer.write(_ERROR % (len(_BODY), _BODY))
            await writer.drain()
        return
    upstream, into = await asyncio.open_connection("127.0.0.1", port)
    try:
        into.write(b"\r\n".join([*kept, b"Connection: close", b"", b""]) + body)
        await into.drain()
        answer = await upstream.read()
    finally:
        into.close()
    if draw < proxy.errors + proxy.lost:
        proxy.spoiled += 1
        return
    writer.write(answer)
    await writer.drain()


def with_environment(server: MotoServer, port: int | None = None) -> dict[str, str]:
    """This process's environment with what reaches `server`."""
    return {**os.environ, **server.environment(port)}
