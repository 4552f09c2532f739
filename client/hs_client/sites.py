"""Where a run may send: every server with its scratch, the mover there and the one dataset that all store to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from hs_client.errors import DestinationsDiffer, ServersDiffer
from hs_client.preflight import Place, ServerFacts, check_mover, check_server, find_place, marker_differences
from hs_client.settings import Endpoint
from hs_formats.control import ControlFolder
from hs_formats.errors import HsError

__all__ = ["Sites", "look_around"]

_ONE_DATASET = ("config_hash", "num_layers", "boundaries", "dtype", "hidden_size")


@dataclass(slots=True)
class Sites:
    """What was found at each endpoint.

    Attributes:
        places: scratches whose mover is known, living or not, each once.
        usable: servers that may be sent to, each with its place.
        troubles: what is wrong with the other endpoints, the first thing that a user would mend.
    """

    places: dict[Path, Place] = field(default_factory=dict)
    usable: list[tuple[Place, ServerFacts]] = field(default_factory=list)
    troubles: list[HsError] = field(default_factory=list)

    @property
    def place(self) -> Place | None:
        """Any of them: all have the same dataset."""
        return next(iter(self.places.values()), None)

    @property
    def trouble(self) -> HsError | None:
        """Why nothing can be sent; None when something can."""
        return None if self.usable else next(iter(self.troubles), None)

    @property
    def widest(self) -> ServerFacts | None:
        """The server that takes the longest prompts."""
        servers = (server for _, server in self.usable)
        return max(servers, key=lambda server: (server.marker.context_length, server.longest_prompt), default=None)


def look_around(endpoints: Sequence[Endpoint], dataset: str) -> Sites:
    """Look at every endpoint. One that is not usable is told in `troubles`.

    Raises:
        DestinationsDiffer: their movers store to different places.
        ServersDiffer: their records would not fit into one dataset.
    """
    sites = Sites()
    for endpoint in endpoints:
        server, trouble = _look_at(endpoint)
        try:
            place = sites.places.get(endpoint.scratch) or find_place(endpoint.scratch, dataset)
            sites.places[endpoint.scratch] = place
            check_mover(place)
        except HsError as error:
            trouble = trouble or error
        else:
            if server is not None:
                sites.usable.append((place, server))
        if trouble is not None:
            sites.troubles.append(trouble)
    _check_places(list(sites.places.values()))
    _check_servers([server for _, server in sites.usable])
    return sites


def _look_at(endpoint: Endpoint) -> tuple[ServerFacts | None, HsError | None]:
    try:
        return anyio.run(check_server, endpoint.url, ControlFolder(endpoint.scratch)), None
    except HsError as error:
        return None, error


def _check_places(places: Sequence[Place]) -> None:
    for other in places[1:]:
        first = places[0]
        if Path(first.mover.dst).resolve() != Path(other.mover.dst).resolve():
            raise DestinationsDiffer(
                one=first.control.scratch, other=other.control.scratch, here=first.mover.dst, there=other.mover.dst
            )


def _check_servers(servers: Sequence[ServerFacts]) -> None:
    for other in servers[1:]:
        differences = marker_differences(servers[0].marker, other.marker, names=_ONE_DATASET)
        if differences:
            raise ServersDiffer(one=servers[0].url, other=other.url, differences="; ".join(differences))
