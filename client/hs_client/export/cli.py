"""The command line of `hs-client export`. Imports nothing heavy: ``--help`` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from hs_client.dataset_argument import DatasetArgument, LocalFolder
from hs_client.export.settings import ALGORITHMS, FORMATS, ExportSettings, default_jobs, parse_serving
from hs_client.options import PROGRESS_INTERVAL
from hs_client.saying import say
from hs_formats.location import Location

__all__ = ["export"]

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@click.command()
@click.argument("dataset", type=DatasetArgument())
@click.option("--format", "format_name", type=click.Choice(FORMATS), required=True, help="Whose files to write.")
@click.option(
    "--out", type=LocalFolder(path_type=Path, file_okay=False), required=True, help="Folder for them, new or begun."
)
@click.option(
    "--dtype",
    type=click.Choice(tuple(_DTYPES)),
    default="bf16",
    show_default=True,
    help="Of the states; a cast is printed and recorded.",
)
@click.option(
    "--algorithm",
    type=click.Choice(ALGORITHMS),
    default="eagle3",
    show_default=True,
    help="Kind of draft model, where the files depend on it.",
)
@click.option("--model", metavar="PATH", help="The target model.  [default: the path that the dataset names]")
@click.option(
    "--draft-vocab-size",
    type=click.IntRange(1),
    metavar="N",
    help="Write the vocabulary maps for the N tokens that are trained on most.",
)
@click.option(
    "--draft-config",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A draft model's config.json, to be completed with layer ids and vocabulary size.",
)
@click.option(
    "--serve",
    metavar="ENGINE:VERSION",
    help="What will serve the draft model, for its layer ids; sglang:X.Y.Z or vllm:X.Y.Z.  [default: the SGLang that"
    " captured]",
)
@click.option("--fp8", is_flag=True, help="speculators: float8 with a scale a token, half the size and lossy.")
@click.option("--unverified", is_flag=True, help="Take samples that hs-client verify has not found right.")
@click.option(
    "--shard-size",
    type=click.FloatRange(0.001, 64),
    default=4.0,
    show_default=True,
    metavar="GIB",
    help="deepspec: largest size of a shard.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 64),
    metavar="N",
    help="Files in work at a time, each with some four copies of a sample in memory.  [default: cores, 4 at most]",
)
@PROGRESS_INTERVAL
def export(
    dataset: Location,
    format_name: str,
    out: Path,
    dtype: str,
    algorithm: str,
    model: str | None,
    draft_vocab_size: int | None,
    draft_config: Path | None,
    serve: str | None,
    fp8: bool,
    unverified: bool,
    shard_size: float,
    jobs: int | None,
    progress_interval: float,
) -> None:
    """Write the folder DATASET as files that a trainer's own loader reads, and say how to train from them.

    Only verified samples are taken. Each file appears whole; a repeated command goes on where the last one stopped.
    """
    settings = ExportSettings(
        dataset=dataset,
        out=out,
        format=format_name,
        dtype=_DTYPES[dtype],
        algorithm=algorithm,
        model=model,
        draft_vocab_size=draft_vocab_size or 0,
        draft_config=draft_config,
        serving=parse_serving(serve) if serve else None,
        fp8=fp8,
        unverified=unverified,
        shard_bytes=int(shard_size * 2**30),
        jobs=jobs or default_jobs(),
        progress_interval_s=progress_interval,
    )
    try:
        from hs_client.export.command import export_command
    except ModuleNotFoundError as error:
        from hs_client.export.errors import MissingPackage

        raise MissingPackage(format=format_name, package=error.name) from None
    sys.exit(export_command(settings, say))
