"""An actor on a node, as the driver knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hs_client.cluster.ending import ClientEnd
from hs_client.cluster.fleet import RayNode

__all__ = ["ASKED", "Member"]

ASKED = "waits for Ray"


@dataclass(slots=True, eq=False)
class Member:
    """An actor and its client.

    Attributes:
        number: of the node.
        actor: as the fleet calls it.
        asked_s: when the fleet was asked for it.
        heard_s: when its client has said last how it stands.
        phase: what it does while its client does not send.
        end: what will be said of its client.
        begun: Ray has started it.
        progress: it has brought rows to an end.
        over: its client has ended, or it is lost.
    """

    number: int
    node: RayNode
    actor: int
    asked_s: float
    heard_s: float = 0.0
    phase: str = ASKED
    end: ClientEnd = field(default_factory=lambda: ClientEnd("", None))
    begun: bool = False
    progress: bool = False
    over: bool = False

    @property
    def name(self) -> str:
        """For people and for the holder: no two members have the same at one time."""
        return f"node {self.number} ({self.node.name})"
