"""The nodes of a Ray cluster and the actors on them. The only module that imports Ray, and only when it is used."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hs_client.cluster.actor import NodeActor
from hs_client.cluster.errors import NoCluster, NoRay
from hs_client.cluster.job import Event, NodeJob
from hs_client.leases.protocol import HolderMessage

__all__ = ["Fleet", "Lost", "RayFleet", "RayNode"]

_POLL_S = 5.0
_CALLS_AT_ONCE = 8
_KNOCK_S = 10.0


@dataclass(frozen=True, slots=True)
class RayNode:
    """A living node: Ray's id of it, its name for people, and its machine's address; empty: not known."""

    id: str
    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """An actor is gone, or could not be made; `reason` is Ray's, in a line."""

    reason: str


class Fleet(Protocol):
    """What the driver needs of Ray. Actors are told apart by the numbers that `begin` returns."""

    @property
    def need(self) -> str:
        """What a node must have, for messages."""
        ...

    def nodes(self) -> list[RayNode]:
        """Living nodes that have it, whoever uses it now, in an order that stays."""
        ...

    def others(self) -> list[str]:
        """What the living nodes have, for messages."""
        ...

    def begin(self, node: RayNode, job: NodeJob) -> int:
        """Ask for an actor on `node`."""
        ...

    def wait(self, timeout_s: float) -> list[tuple[int, list[Event] | Lost]]:
        """What actors say, after `timeout_s` seconds at most. One that is lost is not heard of again."""
        ...

    def give(self, actor: int, messages: Sequence[HolderMessage]) -> None:
        """Have the actor tell its client."""
        ...

    def interrupt(self, actor: int) -> None:
        """Have it end."""
        ...

    def drop(self, actor: int) -> None:
        """Be done with it."""
        ...

    def close(self) -> None:
        """Be done with the cluster."""
        ...


@dataclass(slots=True)
class _Handle:
    actor: Any
    polling: Any
    given: int = 0


class RayFleet:
    """A `Fleet` of Ray.

    Args:
        address: ``auto``, or HOST:PORT of the cluster's head.
        resource: the custom resource of which an actor takes one unit; empty: none.
        gpus: that an actor takes.

    Raises:
        NoRay: it is not installed.
        NoCluster: there is no cluster at `address`, or it cannot be used.
    """

    def __init__(self, address: str, *, resource: str, gpus: float) -> None:
        try:
            import ray
        except ImportError:
            raise NoRay from None
        self._ray: Any = ray
        self._resource = resource
        self._gpus = gpus
        self._handles: dict[int, _Handle] = {}
        self._next = 0
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _knock(address)
        try:
            # The actors' output stays in Ray's logs: what matters of it is said by events.
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except ConnectionError as error:
            # Ray's own words for that name options of Ray's.
            reason = _first_line(error) if ":" in address else "none runs on this machine"
            raise NoCluster(address=address, reason=reason) from None
        except (RuntimeError, ValueError) as error:
            raise NoCluster(address=address, reason=_first_line(error)) from None

    @property
    def need(self) -> str:
        """``1 NAME`` or ``8 GPU``."""
        words = [f"1 {self._resource}"] if self._resource else []
        words += [f"{self._gpus:g} GPU"] if self._gpus else []
        return " and ".join(words)

    def nodes(self) -> list[RayNode]:
        """By name, then by id."""
        found = [
            RayNode(each["NodeID"], _name(each), each["NodeManagerAddress"])
            for each in self._ray.nodes()
            if each["Alive"]
            and (not self._resource or each["Resources"].get(self._resource, 0) >= 1)
            and each["Resources"].get("GPU", 0) >= self._gpus
        ]
        return sorted(found, key=lambda node: (node.name, node.id))

    def others(self) -> list[str]:
        """``NAME (8 GPU, 64 CPU)`` each."""
        return [
            f"{_name(each)} ({', '.join(_resources(each['Resources'])) or 'nothing'})"
            for each in self._ray.nodes()
            if each["Alive"]
        ]

    def begin(self, node: RayNode, job: NodeJob) -> int:
        """Its actor is on that node or nowhere, and is never started again by Ray."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = (
            self._ray.remote(NodeActor)
            .options(
                num_cpus=0,
                num_gpus=self._gpus,
                resources={self._resource: 1} if self._resource else None,
                max_concurrency=_CALLS_AT_ONCE,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote(job)
        )
        number, self._next = self._next, self._next + 1
        self._handles[number] = _Handle(actor, actor.poll.remote(_POLL_S))
        return number

    def wait(self, timeout_s: float) -> list[tuple[int, list[Event] | Lost]]:
        """Each actor has one call of `poll` under way at any time."""
        refs = {handle.polling: number for number, handle in self._handles.items()}
        if not refs:
            return []
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=timeout_s)
        if ready:
            ready, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=0)
        return [(refs[ref], self._take(refs[ref])) for ref in ready]

    def _take(self, number: int) -> list[Event] | Lost:
        handle = self._handles[number]
        try:
            events: list[Event] = self._ray.get(handle.polling)
        except (self._ray.exceptions.RayError, OSError) as error:
            del self._handles[number]
            return Lost(_first_line(error))
        handle.polling = handle.actor.poll.remote(_POLL_S)
        return events

    def give(self, actor: int, messages: Sequence[HolderMessage]) -> None:
        """Returns at once."""
        handle = self._handles.get(actor)
        if handle is not None:
            handle.actor.give.remote(handle.given, messages)
            handle.given += 1

    def interrupt(self, actor: int) -> None:
        """Returns at once."""
        handle = self._handles.get(actor)
        if handle is not None:
            handle.actor.interrupt.remote()

    def drop(self, actor: int) -> None:
        """Kill it: what it has started was stopped, or is to stay."""
        handle = self._handles.pop(actor, None)
        if handle is not None:
            self._ray.kill(handle.actor)

    def close(self) -> None:
        """Ray ends all actors that are left."""
        self._ray.shutdown()


def _knock(address: str) -> None:
    """See that somebody listens there: Ray would try for minutes.

    Raises:
        NoCluster: nobody does.
    """
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), _KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise NoCluster(address=address, reason=getattr(error, "strerror", None) or error) from None


def _name(node: dict[str, Any]) -> str:
    return str(node.get("NodeManagerHostname") or node.get("NodeName") or node["NodeManagerAddress"])


def _resources(found: dict[str, float]) -> list[str]:
    """What a user has given a node, and its CPUs; not what Ray counts for itself."""
    hidden = ("node:", "memory", "object_store_memory", "accelerator_type:")
    return [f"{count:g} {name}" for name, count in sorted(found.items()) if not name.startswith(hidden)]


def _first_line(error: BaseException) -> str:
    """What Ray says, in a line: of errors raised in an actor the last one, which is what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    told = [line for line in lines if "Error: " in line and not line.startswith(("ray.", "File "))]
    return told[-1] if told else lines[0]
