"""`hs-client report` from a dataset's folder to one HTML file that needs nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from hs_client.info_command import open_dataset
from hs_client.report.dataset_sections import (
    head_tiles,
    length_section,
    loss_section,
    provenance_section,
    runs_table,
)
from hs_client.report.facts import DatasetFacts, gather
from hs_client.report.markup import page, section
from hs_client.report.run_section import run_section
from hs_client.report.scales import show_time
from hs_client.report.slot_section import slot_section
from hs_client.report.values import ValueFacts, read_values
from hs_client.saying import say
from hs_client.tally import show_bytes
from hs_formats.durable import write_durable
from hs_formats.errors import PreflightError, StorageError
from hs_formats.location import Location

__all__ = ["REPORT_NAME", "ReportSettings", "render", "report_command"]

REPORT_NAME = "report.html"
_DRAWN_RUNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSettings:
    """`out`: the file, by default REPORT_NAME in the dataset, or in the current folder for one in an object store.
    `sample`: how many samples' values are read."""

    dataset: Location
    out: Path | None
    sample: int


def report_command(settings: ReportSettings) -> int:
    """Write the page; returns 0, or 1 where some of the samples that it drew cannot be read.

    Raises:
        PreflightError: the folder is no dataset, or its books cannot be read.
        StorageError: the page cannot be written.
    """
    paths = open_dataset(settings.dataset)
    info = paths.read_info()
    if info is None:
        raise PreflightError(f"{settings.dataset} has lost its dataset.json just now")
    facts = gather(paths, info)
    samples = list(facts.index.samples.values())
    values = read_values(paths, info, samples, settings.sample, seen=_show)
    text = render(facts, values, at=datetime.now(UTC))
    out = settings.out or (paths.root if paths.local else Path()) / REPORT_NAME
    data = text.encode("utf-8", "replace")
    try:
        write_durable(out, data)
    except OSError as error:
        raise StorageError(
            f"{out} cannot be written ({error.strerror or error}): name another file with --out"
        ) from None
    for what in values.unreadable:
        say(f"warning: left out, as it cannot be read: {what}", err=True)
    say(f"report     {out}, {show_bytes(len(data))}, values of {values.samples} of {len(samples)} samples")
    return 1 if values.unreadable else 0


def _show(number: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if number == total else ""
        print(f"\r{number} of {total} samples read", end=end, file=sys.stderr, flush=True)  # noqa: T201


def render(facts: DatasetFacts, values: ValueFacts, *, at: datetime) -> str:
    """The page."""
    info = facts.info
    boundaries = ", ".join(map(str, info.boundaries))
    lead = [info.model, f"boundaries {boundaries} and the last state", info.dtype, f"report of {at:%Y-%m-%d %H:%M} UTC"]
    return page(f"Hidden states: {facts.root.name}", " · ".join(lead), _body(facts, values))


def _body(facts: DatasetFacts, values: ValueFacts) -> Iterator[str]:
    yield from head_tiles(facts)
    yield section("Runs", _runs(facts))
    yield section("Lengths", length_section(facts))
    yield section("Slots", slot_section(values, of=len(facts.index.samples)))
    yield section("Failures and rejects", loss_section(facts))
    yield section("Where it comes from", provenance_section(facts))


def _runs(facts: DatasetFacts) -> Iterator[str]:
    yield runs_table(facts.runs)
    sent = [run for run in reversed(facts.runs) if run.timeline or run.stored]
    first = next((run for run in sent if run.counts["done"]), None)  # of the newest ones some may have done nothing
    for run in sent[:_DRAWN_RUNS]:
        state = " open" if run is first else ""
        head = f"Run {run.run}, started {show_time(run.started_at)}"
        yield f"<details{state}><summary>{escape(head)}</summary>"
        yield from run_section(run)
        yield "</details>"
    if len(sent) > _DRAWN_RUNS:
        yield f'<p class="soft">The {_DRAWN_RUNS} newest of {len(sent)} runs are drawn.</p>'
