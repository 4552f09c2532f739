"""The options of `hs-client report`. Nothing heavy is imported before it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hs_client.dataset_argument import DatasetArgument
from hs_formats.location import Location

__all__ = ["report"]


@click.command()
@click.argument("dataset", type=DatasetArgument())
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The page.  [default: report.html in DATASET]",
)
@click.option(
    "--sample",
    type=click.IntRange(0),
    metavar="N",
    default=32,
    show_default=True,
    help="Samples whose values are read, drawn at random.",
)
def report(dataset: Location, out: Path | None, sample: int) -> None:
    """Draw the folder DATASET and its runs on one HTML page that needs no other file and no network.

    Throughput, scratch, answers and what limited each run; lengths; per slot the size of states, channels that stand
    out and compression; rejects by reason; where it all comes from.
    """
    from hs_client.report.command import ReportSettings, report_command

    sys.exit(report_command(ReportSettings(dataset=dataset, out=out, sample=sample)))
