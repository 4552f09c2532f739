"""Says the plan before the run and refuses a run that cannot fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hs_client.admission import RecordCost
from hs_client.budget import Budget
from hs_client.errors import CannotFit
from hs_client.history import History
from hs_client.measured import measure_room
from hs_client.preflight import Place, ServerFacts
from hs_client.survey import Volume

__all__ = ["check_budget"]


def check_budget(
    volume: Volume,
    *,
    places: Iterable[Place],
    server: ServerFacts,
    history: History,
    say: Callable[[str], None],
    force: bool,
) -> None:
    """Say what `volume` needs and what there is; `places` have one destination, `server` is the widest.

    Raises:
        CannotFit: it does not fit, and `force` is not set.
    """
    first, *others = places
    room = measure_room(first.paths, first.mover, history)
    room = replace(room, scratch_bytes=max([room.scratch_bytes, *(place.mover.limit_bytes for place in others)]))
    marker = server.marker
    cost = RecordCost.of(
        writers=marker.writers,
        ranks=len(marker.expected_ranks),
        bytes_per_token=marker.bytes_per_token,
        chunk_tokens=marker.chunk_size,
    )
    budget = Budget(volume, cost, room)
    for line in budget.lines():
        say(line)
    refusals = budget.refusals()
    if refusals and not force:
        raise CannotFit(reasons="; ".join(refusals))
    for refusal in refusals:
        say(f"warning    {refusal}: --force goes on all the same")
