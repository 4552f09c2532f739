"""The client's end of the socket to the holder of the leases: lines in, lines out, no more kept than needed."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator

import anyio

from hs_client.errors import LeasesBroken, NoLeases
from hs_client.leases.protocol import MAX_LINE_BYTES, HolderMessage, Message, Over, encode_line, holder_message

__all__ = ["Channel"]

_READ_BYTES = 1 << 16
_FULL_BYTES = 1 << 16
_LAST_WORDS_S = 5.0


class Channel:
    """A stream socket that this process was given as the descriptor `fd`.

    Raises:
        NoLeases: it is none.
    """

    def __init__(self, fd: int) -> None:
        try:
            self._socket = socket.socket(fileno=fd)
            if self._socket.type != socket.SOCK_STREAM:
                self._socket.detach()
                raise NoLeases(fd=fd, reason="not a stream")
        except OSError as error:
            raise NoLeases(fd=fd, reason=error.strerror or error) from None
        os.set_inheritable(fd, False)  # the holder learns of our death by the end of the stream
        self._socket.setblocking(False)
        self._out = bytearray()
        self._more = anyio.Event()
        self._gone = False
        self._over = False

    @property
    def full(self) -> bool:
        """What was said before is not on its way yet: say only what must be said."""
        return len(self._out) >= _FULL_BYTES

    def say(self, message: Message) -> None:
        """Send `message` as soon as the other side takes it."""
        if not self._gone:
            self._out += encode_line(message)
            self._more.set()

    async def messages(self) -> AsyncIterator[HolderMessage]:
        """What the holder says, until it is gone.

        Raises:
            LeasesBroken: what it says is not understood.
        """
        waiting = bytearray()
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            except OSError:
                data = b""
            if not data:
                self._gone = True
                self._out.clear()
                return
            waiting += data
            *lines, waiting = waiting.split(b"\n")
            if len(waiting) >= MAX_LINE_BYTES:
                raise LeasesBroken(reason="a line without an end")
            for line in lines:
                yield holder_message(bytes(line))

    async def serve(self) -> None:
        """Send what is said, for ever."""
        while True:
            await self._more.wait()
            self._more = anyio.Event()
            while self._out:
                try:
                    sent = self._socket.send(self._out)
                except BlockingIOError:
                    await anyio.wait_writable(self._socket)
                except OSError:  # it is gone, which `messages` says
                    self._gone = True
                    self._out.clear()
                else:
                    del self._out[:sent]

    def over(self, message: Over) -> None:
        """Send what is left to send, and the last words, once; the end of the stream follows. For no event loop."""
        if self._over:
            return
        self._over = True
        with contextlib.suppress(OSError):
            self._socket.settimeout(_LAST_WORDS_S)
            self._socket.sendall(self._out + encode_line(message))
        self._socket.close()
