"""The options of `hs-client split` and `hs-client merge`. Nothing heavy is imported before they run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hs_client.dataset_argument import DatasetArgument, LocalFolder
from hs_client.saying import say
from hs_formats.location import Location

__all__ = ["merge", "split"]

_COPY = click.option("--copy", is_flag=True, help="Copy payload instead of linking it.")
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Count, write nothing.")
_FOLDER = click.Path(path_type=Path)


@click.command()
@click.argument("dataset", type=DatasetArgument())
@click.argument("out", type=LocalFolder(path_type=Path))
@click.option("--ids", type=_FOLDER, metavar="FILE", help="Samples of these ids, one a line; a prompts file will do.")
@click.option("--min-tokens", type=click.IntRange(1), metavar="N", default=1, help="At least so many tokens.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="At most so many tokens.")
@click.option("--min-trained", type=click.IntRange(0), metavar="N", default=0, help="At least so many trained on.")
@click.option("--max-trained", type=click.IntRange(0), metavar="N", help="At most so many trained on.")
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=PATTERN",
    help="A field of the ledger matches, with * and ?: sample_id, rid, run, row (file:line), content, finish_reason, "
    "adopted. May be repeated.",
)
@click.option(
    "--fraction",
    metavar="LOW:HIGH",
    default="0:1",
    help="A share by hash of the token ids, such as 0:0.95 and 0.95:1. Equal prompts stay together.",
)
@click.option("--verified", is_flag=True, help="Only what hs-client verify has found right.")
@click.option("--invert", is_flag=True, help="Take the samples that do not fit the conditions.")
@_COPY
@_DRY_RUN
def split(
    dataset: Location,
    out: Path,
    ids: Path | None,
    min_tokens: int,
    max_tokens: int | None,
    min_trained: int,
    max_trained: int | None,
    where: tuple[str, ...],
    fraction: str,
    verified: bool,
    invert: bool,
    copy: bool,
    dry_run: bool,
) -> None:
    """Make the new dataset OUT of samples of the folder DATASET.

    A sample is taken when it fits all conditions. Nothing of DATASET changes; payload is linked where it can be.
    """
    from hs_client.subset.commands import split_command
    from hs_client.subset.query import Query, parse_fraction, parse_where, read_ids

    query = Query(
        ids=None if ids is None else read_ids(ids),
        tokens=(min_tokens, _most(max_tokens)),
        trained=(min_trained, _most(max_trained)),
        where=[parse_where(text) for text in where],
        fraction=parse_fraction(fraction),
        verified=verified,
        invert=invert,
    )
    sys.exit(split_command(dataset, out, query, copy=copy, dry_run=dry_run, say=say))


@click.command()
@click.argument("out", type=LocalFolder(path_type=Path))
@click.argument("datasets", nargs=-1, required=True, type=DatasetArgument(), metavar="DATASET...")
@click.option("--prefix-ids", is_flag=True, help="Give each sample the id DATASET/ID.")
@_COPY
@_DRY_RUN
def merge(out: Path, datasets: tuple[Location, ...], **options: Any) -> None:
    """Make the new dataset OUT of all samples of several, which were made alike.

    A sample that several have for the same prompt is taken once. Payload is linked where it can be.
    """
    from hs_client.subset.commands import merge_command

    sys.exit(merge_command(out, datasets, say=say, **options))


def _most(value: int | None) -> float:
    return float("inf") if value is None else value
