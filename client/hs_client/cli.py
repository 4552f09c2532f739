"""`hs-client`: the command line. Nothing heavy is imported before a command needs it: ``--help`` answers at once."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Literal

import click
from click.core import ParameterSource

from hs_client.dataset_argument import DatasetArgument
from hs_client.export.cli import export
from hs_client.report.cli import report
from hs_client.saying import say
from hs_client.subset.cli import merge, split
from hs_formats.errors import HsError, UsageError
from hs_formats.location import Location

__all__ = ["cli", "main"]

_SCRATCH = click.option(
    "--scratch",
    type=click.Path(path_type=Path, file_okay=False),
    help="The tmpfs folder that the server writes to.  [default: $SGLANG_HS_DUMP_DIR, else /dev/shm/sglang_hs]",
)

_GENERATION = (
    *("regenerate", "temperature", "top_p", "max_new_tokens", "stop", "seed", "variants", "cut_answers"),
    *("looping_answers", "generate_concurrency"),
)

_EPILOG = """
\b
Examples, with a server (hs-server launch) and a mover (hs-mover) running
  hs-client run prompts.jsonl --dry-run
  hs-client run prompts.jsonl
  hs-client verify /data/prompts
  hs-client export /data/prompts --format specforge --out /data/specforge
"""

_RUN_EPILOG = """
\b
Examples
  hs-client run chats.jsonl.gz more.jsonl --dataset chats --train-on last
  zcat chats.jsonl.gz | hs-client run - --dataset chats
  hs-client run prompts.jsonl --server http://127.0.0.1:8000=/dev/shm/a --server http://127.0.0.1:8001=/dev/shm/b
  hs-client run prompts.jsonl --shard 0/2
  hs-client run questions.jsonl --generate --temperature 0.8 --variants 2

\b
In the environment: HS_SERVER, HS_CONCURRENCY and HS_GENERATE_CONCURRENCY for these options, HS_API_KEY for a server
with --api-key.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, epilog=_EPILOG)
@click.version_option(package_name="hs-extract")
def cli() -> None:
    """Sends prompts to a capturing SGLang server and sees to it that each gets its verified record.

    Exit codes: 0 all done, 1 finished but some rows failed or were rejected, 2 usage, 3 refused by a check, 4 server
    lost, 5 storage (scratch, destination, mover), 130 interrupted.
    """


@cli.command(epilog=_RUN_EPILOG)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True), metavar="FILE...")
@click.option(
    "--server",
    "servers",
    metavar="URL[=SCRATCH]",
    multiple=True,
    default=["http://127.0.0.1:8000"],
    envvar="HS_SERVER",
    show_default=True,
    help="The SGLang server; repeat it for several, each with the scratch that it writes to.",
)
@_SCRATCH
@click.option(
    "--dataset",
    metavar="NAME",
    default="",
    help="Folder below the mover's destination.  [default: name of the first FILE]",
)
@click.option("--tokenizer", metavar="PATH", default="", help="Tokenizer of the prompts.  [default: the server's]")
@click.option("--trust-remote-code", is_flag=True, help="Let the tokenizer bring its own code.")
@click.option(
    "--chat-template",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Jinja chat template.  [default: the tokenizer's]",
)
@click.option(
    "--chat-template-kwargs",
    metavar="JSON",
    default="",
    help="Arguments of the chat template for every row, such as '{\"enable_thinking\": false}'.",
)
@click.option(
    "--train-on",
    type=click.Choice(["all", "last"]),
    default="all",
    show_default=True,
    help="Turns of the assistant that the loss mask covers.",
)
@click.option(
    "--max-length", type=click.IntRange(1), metavar="N", help="Tokens of a sample.  [default: what the server takes]"
)
@click.option(
    "--overlong",
    type=click.Choice(["reject", "truncate"]),
    default="reject",
    show_default=True,
    help="What becomes of longer rows.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    default=64,
    envvar="HS_CONCURRENCY",
    show_default=True,
    help="Requests in flight to each server at most.",
)
@click.option(
    "--part-timeout",
    type=click.FloatRange(0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds after an answer in which its part files must have appeared.",
)
@click.option(
    "--mover-timeout",
    type=click.FloatRange(1),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds without any storage progress after which the run ends with exit code 5.",
)
@click.option(
    "--server-timeout",
    type=click.FloatRange(1),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds without a sign of the server after which the run ends with exit code 4.",
)
@click.option(
    "--request-timeout",
    type=click.FloatRange(1),
    default=1800.0,
    show_default=True,
    metavar="S",
    help="Seconds that one answer may take, its time in the server's queue included.",
)
@click.option(
    "--max-retries",
    type=click.IntRange(0, 50),
    default=2,
    show_default=True,
    help="Further attempts of a sample whose record was not right.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Send at most N samples.")
@click.option("--shard", metavar="I/N", default="0/1", help="Only the samples of shard I (from 0) of N.")
@click.option(
    "--progress-interval",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds between lines where there is no terminal.",
)
@click.option("--generate", is_flag=True, help="Have the server answer rows without an answer, and capture both.")
@click.option(
    "--regenerate",
    type=click.Choice(["missing", "all"]),
    default="missing",
    show_default=True,
    help="With --generate: answers that are missing, or every turn of the assistant.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 100),
    default=0.0,
    show_default=True,
    metavar="T",
    help="Of sampling answers; 0 takes the likeliest token.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    metavar="P",
    help="Sample from the likeliest tokens that have this share.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    metavar="N",
    help="Tokens of an answer at most.",
)
@click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends an answer; may be repeated.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed of sampling.")
@click.option(
    "--variants", type=click.IntRange(1, 999_999), default=1, show_default=True, metavar="N", help="Answers a row."
)
@click.option(
    "--cut-answers",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="Answers that end at --max-new-tokens.",
)
@click.option(
    "--looping-answers",
    type=click.Choice(["keep", "drop"]),
    default="drop",
    show_default=True,
    help="Answers that repeat themselves at the end.",
)
@click.option(
    "--generate-concurrency",
    type=click.IntRange(1, 4096),
    default=64,
    envvar="HS_GENERATE_CONCURRENCY",
    show_default=True,
    metavar="N",
    help="Requests for answers in flight to each server at most.",
)
@click.option("--retry-rejected", is_flag=True, help="Look again at rows that earlier runs have rejected.")
@click.option(
    "--summary-json", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The summary, for programs."
)
@click.option("--dry-run", is_flag=True, help="Check, count and say what the run needs; send nothing.")
@click.option("--force", is_flag=True, help="Go on where the plan says that the records cannot fit.")
@click.option(
    "--no-doctor", is_flag=True, help="Do not have a server examined of which no `hs-server doctor` pass is on record."
)
def run(
    files: tuple[Path, ...],
    servers: tuple[str, ...],
    scratch: Path | None,
    dataset: str,
    tokenizer: str,
    trust_remote_code: bool,
    chat_template: Path | None,
    chat_template_kwargs: str,
    train_on: Literal["all", "last"],
    max_length: int | None,
    overlong: str,
    concurrency: int,
    part_timeout: float,
    mover_timeout: float,
    server_timeout: float,
    request_timeout: float,
    max_retries: int,
    limit: int | None,
    shard: str,
    progress_interval: float,
    generate: bool,
    regenerate: Literal["missing", "all"],
    temperature: float,
    top_p: float,
    max_new_tokens: int,
    stop: tuple[str, ...],
    seed: int,
    variants: int,
    cut_answers: Literal["keep", "drop"],
    looping_answers: Literal["keep", "drop"],
    generate_concurrency: int,
    retry_rejected: bool,
    summary_json: Path | None,
    dry_run: bool,
    force: bool,
    no_doctor: bool,
) -> None:
    """Have the server capture every row of FILE, JSON lines with input_ids, text, prompt, messages or conversations.

    A repeated command goes on where the last one stopped: what is done is never sent again.
    """
    from hs_client.chat_options import ChatOptions, parse_arguments, read_template
    from hs_client.generate.options import GenerateOptions
    from hs_client.run_command import run_command
    from hs_client.settings import RunSettings, parse_servers, parse_shard
    from hs_formats.control import default_scratch

    source_of = click.get_current_context().get_parameter_source
    given = [name for name in _GENERATION if source_of(name) is ParameterSource.COMMANDLINE]
    if given and not generate:
        raise UsageError(f"--{given[0].replace('_', '-')} goes with --generate")
    options = GenerateOptions(
        regenerate=regenerate,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        stop=stop,
        seed=seed,
        variants=variants,
        cut=cut_answers,
        looping=looping_answers,
        concurrency=generate_concurrency,
    )
    settings = RunSettings(
        files=files,
        generate=options if generate else None,
        servers=parse_servers(servers, scratch or default_scratch()),
        dataset=dataset,
        tokenizer=tokenizer,
        trust_remote_code=trust_remote_code,
        chat=ChatOptions(read_template(chat_template), parse_arguments(chat_template_kwargs), train_on),
        max_length=max_length,
        truncate=overlong == "truncate",
        concurrency=concurrency,
        part_timeout_s=part_timeout,
        mover_timeout_s=mover_timeout,
        server_timeout_s=server_timeout,
        request_timeout_s=request_timeout,
        max_retries=max_retries,
        limit=limit,
        shard=parse_shard(shard),
        dry_run=dry_run,
        force=force,
        doctor=not no_doctor,
        progress_interval_s=progress_interval,
        retry_rejected=retry_rejected,
        summary_json=summary_json,
        command=shlex.join(["hs-client", *sys.argv[1:]]),
        # For tests alone: shows what happens to a full scratch when nobody keeps within the limit.
        admission=os.environ.get("HS_TEST_NO_ADMISSION") != "1",
    )
    sys.exit(run_command(settings))


@cli.command()
@click.argument("dataset", type=DatasetArgument(), required=False)
@_SCRATCH
def status(dataset: Location | None, scratch: Path | None) -> None:
    """Say what servers, mover and clients of a scratch folder do; or how far the folder DATASET has come."""
    from hs_client.status_command import dataset_lines, status_lines
    from hs_formats.control import default_scratch

    folder = (scratch or default_scratch()).absolute()
    for line in status_lines(folder) if dataset is None else dataset_lines(dataset, folder):
        say(line)


@cli.command()
@click.argument("dataset", type=DatasetArgument())
@_SCRATCH
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
@_SCRATCH
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
