"""A holder of leases for tests: clients as children at the other ends of socket pairs, and a loop over the sockets."""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hs_client.leases.holder import Answers, Holder
from hs_client.leases.protocol import ClientMessage, Ended, Lease, Over, State, client_message, encode_line

__all__ = ["Client", "LeaseHolder", "holding"]


@dataclass
class Client:
    """A leased client. `said`: all but its states. `leases`: the row ranges that it was given, in order."""

    name: str
    process: subprocess.Popen[bytes]
    socket: socket.socket
    log: Path
    said: list[ClientMessage] = field(default_factory=list)
    leases: list[tuple[int, int]] = field(default_factory=list)
    state: State = field(default_factory=State)
    over: Over | None = None
    waiting: bytes = b""

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.log.read_text()

    def of(self, kind: type) -> list[ClientMessage]:
        """What it has said of one kind."""
        return [message for message in self.said if isinstance(message, kind)]


class LeaseHolder:
    """Starts clients and deals out rows, in a thread, until `close`.

    Args:
        nodes: as the `Holder` takes it.
        folder: for the logs.

    Attributes:
        deaf: names of clients of which it is not heard that rows have ended.
    """

    def __init__(self, folder: Path, *, nodes: int) -> None:
        self.holder = Holder(nodes=nodes)
        self.clients: dict[str, Client] = {}
        self.deaf: set[str] = set()
        self.errors: list[Exception] = []
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._ends = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def start(self, name: str, argv: Sequence[str]) -> Client:
        """Start `argv` with ``--leases FD``."""
        ours, theirs = socket.socketpair()
        log = self._folder / f"{name}.log"
        with theirs, log.open("ab") as output:
            process = subprocess.Popen(
                [*argv, "--leases", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        client = Client(name, process, ours, log)
        with self._lock:
            self.clients[name] = client
            self._selector.register(ours, selectors.EVENT_READ, client)
        return client

    def wait(self, timeout_s: float = 90) -> list[int]:
        """Wait for all clients to end; their exit codes, in the order in which they were started."""
        end_s = time.monotonic() + timeout_s
        codes: list[int] = []
        for client in self.clients.values():
            try:
                codes.append(client.process.wait(max(0.1, end_s - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{client.name} did not end in {timeout_s} s:\n{client.text}") from None
            assert "Traceback" not in client.text, client.text
        return codes

    def wait_until(self, condition: Callable[[], object], *, timeout_s: float = 60) -> None:
        """Wait for something to happen."""
        end_s = time.monotonic() + timeout_s
        while not condition():
            logs = "\n".join(client.text for client in self.clients.values())
            assert time.monotonic() < end_s, f"not within {timeout_s} s:\n{logs}"
            time.sleep(0.01)

    def die(self) -> None:
        """As the death of the holder: all streams end."""
        self._ends = True
        self._thread.join(10)
        for client in self.clients.values():
            client.socket.close()

    def close(self) -> None:
        """End it, and what it has started."""
        if not self._ends:
            self.die()
        for client in self.clients.values():
            if client.process.poll() is None:
                client.process.kill()
            client.process.wait()
        self._selector.close()
        if self.errors:
            raise self.errors[0]

    def _serve(self) -> None:
        while not self._ends:
            ready = self._selector.select(0.02)
            with self._lock:
                for key, _ in ready:
                    try:
                        self._read(key.data)
                    except Exception as error:  # noqa: BLE001 - it is raised where the holder is closed
                        self.errors.append(error)
                        self._ends = True

    def _read(self, client: Client) -> None:
        try:
            data = client.socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(client.socket)
            self._tell(self.holder.lost(client.name))
            return
        *lines, client.waiting = (client.waiting + data).split(b"\n")
        for line in lines:
            message = client_message(line)
            if isinstance(message, State):
                client.state = message
            else:
                client.said.append(message)
            if isinstance(message, Over):
                client.over = message
            if not (isinstance(message, Ended) and client.name in self.deaf):
                self._tell(self.holder.heard(client.name, message))

    def _tell(self, answers: Answers) -> None:
        for name, message in answers:
            client = self.clients[name]
            if isinstance(message, Lease):
                client.leases.append((message.start, message.stop))
            with contextlib.suppress(OSError):  # it has died, which is seen by the end of its stream
                client.socket.sendall(encode_line(message))


@contextlib.contextmanager
def holding(folder: Path, *, nodes: int = 2) -> Iterator[LeaseHolder]:
    """A holder for the length of a block, its logs in `folder`."""
    folder.mkdir(exist_ok=True)
    holder = LeaseHolder(folder, nodes=nodes)
    try:
        yield holder
    finally:
        holder.close()
