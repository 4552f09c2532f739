"""`hs-client`: the command line. Nothing heavy is imported before a command needs it: ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hs_client.dataset_argument import DatasetArgument
from hs_client.export.cli import export
from hs_client.options import SCRATCH
from hs_client.report.cli import report
from hs_client.run_cli import run
from hs_client.saying import say
from hs_client.subset.cli import merge, split
from hs_formats.errors import HsError, UsageError
from hs_formats.location import Location

__all__ = ["cli", "main"]

_EPILOG = """
\b
Examples, with a server (hs-server launch) and a mover (hs-mover) running
  hs-client run prompts.jsonl --dry-run
  hs-client run prompts.jsonl
  hs-client verify /data/prompts
  hs-client export /data/prompts --format specforge --out /data/specforge
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=_EPILOG)
@click.version_option(package_name="hs-extract")
def cli() -> None:
    """Sends prompts to a capturing SGLang server and sees to it that each gets its verified record.

    Exit codes: 0 all done, 1 finished but some rows failed or were rejected, 2 usage, 3 refused by a check, 4 server
    lost, 5 storage (scratch, destination, mover), 130 interrupted.
    """


@cli.command()
@click.argument("dataset", type=DatasetArgument(), required=False)
@SCRATCH
def status(dataset: Location | None, scratch: Path | None) -> None:
    """Say what servers, mover and clients of a scratch folder do; or how far the folder DATASET has come."""
    from hs_client.status_command import dataset_lines, status_lines
    from hs_formats.control import default_scratch

    folder = (scratch or default_scratch()).absolute()
    for line in status_lines(folder) if dataset is None else dataset_lines(dataset, folder):
        say(line)


@cli.command()
@click.argument("dataset", type=DatasetArgument())
@SCRATCH
@click.option("--jobs", type=click.IntRange(1, 256), metavar="N", help="Records read at once.  [default: CPUs]")
@click.option("--json", "report", metavar="FILE", default="", help="Write all findings there, - for standard output.")
@click.option("--model", metavar="PATH", default="", help="Compute samples again with this model, in transformers.")
@click.option(
    "--sample",
    type=click.IntRange(0),
    metavar="N",
    help="How many, drawn at random; what looks suspicious comes on top.  [default: 16]",
)
@click.option("--seed", type=int, metavar="N", help="Seed of the draw.")
@click.option("--trust-remote-code", is_flag=True, help="Let the model bring its own code.")
@click.option("--repair", is_flag=True, help="Rebuild manifests and ledgers from what is there, then verify again.")
@click.option(
    "--prompts",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --repair: rows for records that have lost what was sent for them. May be repeated.",
)
def verify(
    dataset: Location,
    scratch: Path | None,
    jobs: int | None,
    report: str,
    model: str,
    sample: int | None,
    seed: int | None,
    trust_remote_code: bool,
    repair: bool,
    prompts: tuple[Path, ...],
) -> None:
    """Check the folder DATASET: its books, its bytes and its values, against each other.

    Exit code 0 when nothing is wrong, 1 otherwise. Samples that nothing speaks against are marked as verified.
    """
    from hs_client.verify.command import VerifySettings, verify_command
    from hs_formats.control import default_scratch

    settings = VerifySettings(
        dataset=dataset,
        scratch=(scratch or default_scratch()).absolute(),
        jobs=jobs or len(os.sched_getaffinity(0)),
        json=report,
        sample=sample,
        model=model,
        trust_remote_code=trust_remote_code,
        seed=seed,
        repair=repair,
        prompts=prompts,
    )
    sys.exit(verify_command(settings))


@cli.command()
@click.argument("dataset", type=DatasetArgument())
def info(dataset: Location) -> None:
    """Say what the folder DATASET holds."""
    from hs_client.info_command import info_lines

    for line in info_lines(dataset):
        say(line)


@cli.command()
@click.argument("dataset", type=DatasetArgument())
@SCRATCH
@click.option("--yes", is_flag=True, help="Delete them; without it they are only listed.")
def prune(dataset: Location, scratch: Path | None, yes: bool) -> None:
    """List stored parts that no sample of the folder DATASET needs, and delete them with --yes.

    These are parts of other attempts at samples that are done, of failed attempts, of requests that no ledger knows,
    quarantined parts, and parts of runs that nobody claimed. Records that the next run may adopt are left alone.
    """
    from hs_client.prune_command import delete, find_orphans
    from hs_client.tally import show_bytes
    from hs_formats.control import default_scratch

    orphans = find_orphans(dataset, (scratch or default_scratch()).absolute())
    for orphan in orphans:
        say(f"{orphan.path}  {show_bytes(orphan.size_bytes)}  {orphan.why}")
    if not yes:
        size = show_bytes(sum(orphan.size_bytes for orphan in orphans))
        say(f"{len(orphans)} files, {size}" + ("; delete them with --yes" if orphans else ""))
        return
    say(f"deleted {len(orphans)} files, {show_bytes(delete(orphans))}")


cli.add_command(export)
cli.add_command(merge)
cli.add_command(report)
cli.add_command(run)
cli.add_command(split)


def main() -> None:
    """Entry point of the console script."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Abort:
        _leave("interrupted", 130)
    except click.ClickException as error:
        _leave(f"error: {error.format_message()}{_see_help()}", error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except HsError as error:
        _leave(f"error: {error}{_see_help() if isinstance(error, UsageError) else ''}", error.exit_code)
    except KeyboardInterrupt:
        _leave("interrupted", 130)


def _see_help() -> str:
    # The group has no options but --help and --version, so that a command can only stand first.
    command = f" {sys.argv[1]}" if sys.argv[1:] and sys.argv[1] in cli.commands else ""
    return f" (see hs-client{command} --help)"


def _leave(text: str, code: int) -> None:
    say(text, err=True)
    sys.exit(code)
