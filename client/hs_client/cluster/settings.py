"""What `hs-client run --ray` was told about nodes, and from it what each node is to do. Pure logic."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from hs_client.cluster.arguments import NODE, child_arguments, of_node
from hs_client.cluster.job import NodeJob
from hs_client.cluster.options import CLUSTER_OPTIONS
from hs_client.settings import server_port
from hs_formats.errors import UsageError

__all__ = ["ClusterSettings", "parse_address", "split_arguments"]

_OURS = {
    "--node-server": {"--port": "--server", "--dump-dir": "--scratch", "--no-capture": "--server"},
    "--node-mover": {"--src": "--scratch", "--once": "--scratch"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings of the driver.

    Attributes:
        address: of the Ray cluster.
        nodes: how many are to take part; None: all that have what a node needs.
        resource: custom resource of which each actor takes one; empty: none.
        gpus: that each actor takes.
        server, mover: arguments of `hs-server launch` and `hs-mover`; None: they run already.
        url, scratch: of a node's server, with ``{node}`` in them where the user has written so.
        command: the click command that took `arguments`, the user's words behind ``hs-client``.
        folder: the driver's.
        environment: variables that the processes on the nodes get.
        version: of hs-extract.
        progress_interval_s: between lines where there is no terminal.
        summary_json: where the summary goes for programs.
        repeat: what the user typed.
    """

    address: str
    nodes: int | None
    resource: str
    gpus: float
    server: tuple[str, ...] | None
    mover: tuple[str, ...] | None
    url: str
    scratch: Path
    command: click.Command
    arguments: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    version: str
    progress_interval_s: float = 10.0
    summary_json: Path | None = None
    repeat: str = ""

    @property
    def same_everywhere(self) -> tuple[str, ...]:
        """Options by which nodes on one machine would start one server or one mover twice."""
        server, scratch = self.server is not None, self.server is not None or self.mover is not None
        words = (
            ("--server", server and NODE not in self.url),
            ("--scratch", scratch and NODE not in str(self.scratch)),
        )
        return tuple(option for option, same in words if same)

    def job(self, number: int, *, tidy: bool = False) -> NodeJob:
        """What node `number` is to do; with `tidy`, to stop what was started there."""
        return NodeJob(
            number=number,
            version=self.version,
            arguments=tuple(child_arguments(self.command, self.arguments, without=CLUSTER_OPTIONS, number=number)),
            folder=self.folder,
            port=server_port(of_node(self.url, number)),
            scratch=of_node(str(self.scratch), number),
            server=_of_node(self.server, number),
            mover=_of_node(self.mover, number),
            environment={name: of_node(value, number) for name, value in self.environment.items()},
            gpus=self.gpus,
            tidy=tidy,
        )


def _of_node(words: tuple[str, ...] | None, number: int) -> tuple[str, ...] | None:
    return None if words is None else tuple(of_node(word, number) for word in words)


def parse_address(text: str) -> str:
    """``auto`` or HOST:PORT.

    Raises:
        UsageError: it is neither; perhaps a file, since a value behind ``--ray`` is the address.
    """
    if text == "auto" or re.fullmatch(r"[^/\s:]+:[0-9]{1,5}", text):
        return text
    raise UsageError(
        f"--ray {text}: an address is HOST:PORT; without one write --ray last, or --ray=auto in front of the files"
    )


def split_arguments(option: str, text: str | None) -> tuple[str, ...] | None:
    """The value of --node-server or --node-mover as words; None where it was not given.

    Raises:
        UsageError: its quotes do not match, or it says what follows from other options.
    """
    if text is None:
        return None
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{option}: its quotes do not match ({str(error).lower()})") from None
    cut = words.index("--") if "--" in words else len(words)
    for word in words[:cut]:
        name = word.partition("=")[0]
        if name in _OURS[option]:
            raise UsageError(
                f"{option}: leave out {name}, which follows from {_OURS[option][name]} ({NODE} may be in it)"
            )
    return words
