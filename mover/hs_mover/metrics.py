"""Numbers for Prometheus on ``http://127.0.0.1:PORT/metrics``: what `mover.json` says, and counters since the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hs_formats.errors import PreflightError, UsageError
from hs_mover.config import METRICS_HOST
from hs_mover.ladder import LADDER

if TYPE_CHECKING:
    from hs_mover.lane import Lane

__all__ = ["MetricsRefused", "serve_metrics"]


class MetricsRefused(PreflightError):
    """--metrics-port {port}: {reason}; choose another port"""


_GAUGES = (
    ("capacity_bytes", "Fill of scratch that can be reached, less the reserve."),
    ("used_bytes", "Fill of scratch, whoever caused it."),
    ("limit_bytes", "Fill up to which clients may be granted requests."),
    ("backlog_parts", "Parts in scratch, still to be moved."),
    ("backlog_bytes", "Their bytes."),
    ("left_alone_parts", "Files with a part's name that stay, as they cannot be moved or deleted."),
    ("in_bytes_per_s", "Rate at which parts arrive, of late."),
    ("out_bytes_per_s", "Rate at which parts leave, of late."),
    ("drain_s", "How long the backlog takes at this rate, in seconds; negative: unknown."),
)
_COUNTERS = (
    ("moved_parts", "Parts that have left scratch."),
    ("moved_bytes", "Their bytes in scratch."),
    ("stored_bytes", "Their bytes in the destination."),
    ("quarantined_parts", "Those among them that are bad."),
)
_STATES = ("moving", "holding", "stopping")


@contextmanager
def serve_metrics(port: int, lanes: Sequence[Lane]) -> Iterator[int]:
    """Serve until the block ends; gives the port, which the system chooses for 0.

    Raises:
        UsageError: the extra is not installed.
        MetricsRefused: the port is taken, or needs rights.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise UsageError("--metrics-port needs prometheus-client: pip install 'hs-extract[metrics]'") from error
    registry = CollectorRegistry()
    registry.register(_Collector(lanes))
    try:
        server, thread = start_http_server(port, addr=METRICS_HOST, registry=registry)
    except (OSError, OverflowError) as error:
        raise MetricsRefused(port=port, reason=getattr(error, "strerror", None) or error) from error
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """Reads the lanes when asked; keeps nothing."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        states = [(str(lane.control.scratch), lane.state, lane.gauges) for lane in self._lanes]
        for name, text in _GAUGES:
            family = GaugeMetricFamily(f"hs_mover_{name}", text, labels=["scratch"])
            for scratch, state, _ in states:
                if state is not None:
                    family.add_metric([scratch], float(getattr(state, name)))
            yield family
        for name, text in _COUNTERS:
            family = CounterMetricFamily(f"hs_mover_{name}", text, labels=["scratch"])
            for scratch, _, gauges in states:
                family.add_metric([scratch], float(getattr(gauges, name)))
            yield family
        state_family = GaugeMetricFamily("hs_mover_state", "1 for the state it is in.", labels=["scratch", "state"])
        codec_family = GaugeMetricFamily("hs_mover_codec", "1 for the codec in use.", labels=["scratch", "codec"])
        for scratch, state, _ in states:
            if state is None:
                continue
            for word in _STATES:
                state_family.add_metric([scratch, word], float(state.state == word))
            for word in dict.fromkeys([*LADDER, state.codec]):
                codec_family.add_metric([scratch, word], float(state.codec == word))
        yield state_family
        yield codec_family
