"""The port at which the ranks of one launch meet (`torch.distributed`'s store, SGLang's ``--nccl-port``).

SGLang draws it from the ports that the kernel also gives to outgoing connections, and binds it some ten seconds later,
when the ranks have started: until then any connection on the machine may take it, and the start fails with EADDRINUSE.
The launcher therefore names a free port that no connection is given.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from hs_server.arguments import names_flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hs_server.arguments import Topology

__all__ = ["draw_port", "rendezvous_arguments"]

_FLAGS = ("--nccl-port", "--dist-init-addr", "--nccl-init-addr")

_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")

_LOWEST = 22000
"""Below lie the ports that services are fond of."""

_TRIES = 100


def rendezvous_arguments(topology: Topology, given: Sequence[str]) -> tuple[str, ...]:
    """``--nccl-port`` with a free port; nothing where the user or SGLang must choose.

    Replicas (data parallelism without DP attention) each need a port of their own, several nodes one address.
    """
    replicas = topology.dp > 1 and not topology.dp_attention
    if replicas or topology.nodes > 1 or any(names_flag(argument, flag) for argument in given for flag in _FLAGS):
        return ()
    port = draw_port()
    return () if port is None else ("--nccl-port", str(port))


def draw_port(outgoing: Path = _OUTGOING) -> int | None:
    """A free port outside of those that `outgoing` names for connections; None where there is none."""
    try:
        low, high = map(int, outgoing.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return None
    outside: list[int] = [*range(_LOWEST, low), *range(high + 1, 1 << 16)]
    for port in random.sample(outside, min(_TRIES, len(outside))):
        if _is_free(port):
            return port
    return None


def _is_free(port: int) -> bool:
    # On all addresses, as the store will listen.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
