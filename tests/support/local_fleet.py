"""A cluster without Ray: each actor is a process of its own, and its client, server and mover are real."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

from hs_client.cluster.actor import NodeActor
from hs_client.cluster.fleet import Lost, RayNode
from hs_client.cluster.job import Event, NodeJob
from hs_client.leases.protocol import HolderMessage

__all__ = ["LocalFleet"]

_POLL_S = 0.02


def _serve(connection: Any, job: NodeJob) -> None:
    actor = NodeActor(job)
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:
            os._exit(0)
        connection.send(getattr(actor, name)(*arguments))


@dataclass
class _Handle:
    process: BaseProcess
    connection: Any
    job: NodeJob
    given: int = 0

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the actor.

        Raises:
            OSError, EOFError: it is dead.
        """
        self.connection.send((name, arguments))
        return self.connection.recv()


class LocalFleet:
    """A `Fleet` of the nodes `names`, all of them this machine. `jobs`: of all actors there were."""

    need = "a place"

    def __init__(self, names: Sequence[str]) -> None:
        self.living = [RayNode(name, name) for name in names]
        self.jobs: list[NodeJob] = []
        self._handles: dict[int, _Handle] = {}
        self._spawn = multiprocessing.get_context("spawn")

    def nodes(self) -> list[RayNode]:
        return list(self.living)

    def others(self) -> list[str]:
        return []

    def begin(self, node: RayNode, job: NodeJob) -> int:
        ours, theirs = self._spawn.Pipe()
        process = self._spawn.Process(target=_serve, args=(theirs, job), daemon=True)
        process.start()
        theirs.close()
        number = len(self.jobs)
        self.jobs.append(job)
        self._handles[number] = _Handle(process, ours, job)
        return number

    def wait(self, timeout_s: float) -> list[tuple[int, list[Event] | Lost]]:
        end_s = time.monotonic() + timeout_s
        found: list[tuple[int, list[Event] | Lost]] = []
        while not found and time.monotonic() < end_s:
            for number, handle in list(self._handles.items()):
                try:
                    events = handle.call("poll", _POLL_S)
                except (OSError, EOFError):
                    self.drop(number)
                    found.append((number, Lost("it was killed")))
                else:
                    found += [(number, events)] if events else []
        return found

    def kill(self, number: int) -> None:
        """SIGKILL to the process of an actor."""
        pid = self._handles[number].process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def _call(self, number: int, name: str, *arguments: Any) -> None:
        if number in self._handles:
            with contextlib.suppress(OSError, EOFError):  # `wait` says so
                self._handles[number].call(name, *arguments)

    def give(self, actor: int, messages: Sequence[HolderMessage]) -> None:
        if actor in self._handles:
            self._handles[actor].given += 1
            self._call(actor, "give", self._handles[actor].given - 1, messages)

    def interrupt(self, actor: int) -> None:
        self._call(actor, "interrupt")

    def drop(self, actor: int) -> None:
        handle = self._handles.pop(actor, None)
        if handle is not None:
            handle.process.kill()
            handle.process.join()
            handle.connection.close()

    def close(self) -> None:
        for number in list(self._handles):
            self.drop(number)
