"""What travels between the driver and the actor of a node. Both have the same version of hs-extract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hs_client.leases.protocol import ClientMessage

__all__ = ["Closed", "Event", "Finished", "Heard", "NodeJob", "Said"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """What one node is to do.

    Attributes:
        number: of the node, from 0.
        version: of hs-extract at the driver.
        arguments: the client's command line behind its name.
        folder: where client, server and mover are started, if there is such a folder.
        environment: variables that the client, the server and the mover get on top of the node's own.
        port: of the server.
        scratch: which it writes to.
        server: further arguments of `hs-server launch`; None: it is not launched.
        mover: arguments of `hs-mover` but for --src; None: it is not started.
        gpus: that Ray has given to the actor.
        tidy: run no client, only stop what an actor that was lost had started.
    """

    number: int
    version: str
    arguments: tuple[str, ...]
    folder: str
    port: int
    scratch: str
    server: tuple[str, ...] | None = None
    mover: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # a key may be in it
    gpus: float = 0.0
    tidy: bool = False

    @property
    def place(self) -> Path:
        """Where to run things: paths that the user has written may be relative to the driver's folder."""
        folder = Path(self.folder)
        return folder if folder.is_dir() else Path("/")


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A line of the client."""

    message: ClientMessage


@dataclass(frozen=True, slots=True)
class Finished:
    """The node's work is over. `exit_code` is the client's, that of what kept it from starting, or, below 0, a signal;
    `error` says why, in a line; `silent`: the client has ended without its last words."""

    exit_code: int
    error: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """What was started on the node is stopped; no event comes any more."""


Event = Said | Heard | Finished | Closed
