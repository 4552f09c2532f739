"""`hs-client run --ray` from its settings to its exit code."""

from __future__ import annotations

from hs_client.cluster.driver import Driver
from hs_client.cluster.fleet import RayFleet
from hs_client.cluster.settings import ClusterSettings
from hs_client.cluster.view import View

__all__ = ["run_cluster"]


def run_cluster(settings: ClusterSettings) -> int:
    """Do one run on many nodes; returns its exit code.

    Raises:
        HsError: with the exit code that belongs to it.
    """
    fleet = RayFleet(settings.address, resource=settings.resource, gpus=settings.gpus)
    try:
        return Driver(settings, fleet, View(interval_s=settings.progress_interval_s)).run()
    finally:
        fleet.close()
