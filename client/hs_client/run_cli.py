"""`hs-client run`: its command line."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click
from click.core import ParameterSource

from hs_client.cluster.options import cluster_options, first_node, many_nodes, run_many
from hs_client.options import PROGRESS_INTERVAL, SCRATCH, seconds_option
from hs_formats.errors import UsageError

__all__ = ["run"]

_GENERATION = (
    *("regenerate", "temperature", "top_p", "max_new_tokens", "stop", "seed", "variants", "cut_answers"),
    *("looping_answers", "generate_concurrency"),
)

_OF_ALL_ROWS = ("limit", "shard", "dry_run")
"""Options that choose among all rows, as whoever holds the leases does."""

_EPILOG = """
\b
Examples
  hs-client run chats.jsonl.gz more.jsonl --dataset chats --train-on last
  zcat chats.jsonl.gz | hs-client run - --dataset chats
  hs-client run prompts.jsonl --server http://127.0.0.1:8000=/dev/shm/a --server http://127.0.0.1:8001=/dev/shm/b
  hs-client run prompts.jsonl --shard 0/2
  hs-client run questions.jsonl --generate --temperature 0.8 --variants 2
  hs-client run /shared/prompts.jsonl --nodes 16 --node-server '--model-path /models/K2 -- --tp-size 8'
      --node-mover '--dst /shared/data' --ray

\b
In the environment: HS_SERVER, HS_CONCURRENCY and HS_GENERATE_CONCURRENCY for these options, HS_API_KEY for a server
with --api-key.
"""


@click.command(epilog=_EPILOG)
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
@SCRATCH
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
@seconds_option(
    "--part-timeout", 60.0, "Seconds after an answer in which its part files must have appeared.", least=0.1
)
@seconds_option(
    "--mover-timeout", 600.0, "Seconds without any storage progress after which the run ends with exit code 5."
)
@seconds_option(
    "--server-timeout", 300.0, "Seconds without a sign of the server after which the run ends with exit code 4."
)
@seconds_option(
    "--request-timeout", 1800.0, "Seconds that one answer may take, its time in the server's queue included."
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
@PROGRESS_INTERVAL
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
@cluster_options
@click.option("--retry-rejected", is_flag=True, help="Look again at rows that earlier runs have rejected.")
@click.option(
    "--summary-json", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The summary, for programs."
)
@click.option("--dry-run", is_flag=True, help="Check, count and say what the run needs; send nothing.")
@click.option("--force", is_flag=True, help="Go on where the plan says that the records cannot fit.")
@click.option("--leases", type=click.IntRange(3), metavar="FD", hidden=True)
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
    leases: int | None,
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

    many, given_servers, given_scratch = many_nodes(), servers, scratch
    if many:
        servers, scratch = first_node(servers, scratch)
    source_of = click.get_current_context().get_parameter_source
    given = [name for name in _GENERATION if source_of(name) is ParameterSource.COMMANDLINE]
    if given and not generate:
        raise UsageError(f"--{given[0].replace('_', '-')} goes with --generate")
    if leases is not None:
        _check_leased(files, [name for name in _OF_ALL_ROWS if source_of(name) is ParameterSource.COMMANDLINE])
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
        command="" if leases is not None else shlex.join(["hs-client", *sys.argv[1:]]),
        leases=leases,
        # For tests alone: shows what happens to a full scratch when nobody keeps within the limit.
        admission=os.environ.get("HS_TEST_NO_ADMISSION") != "1",
    )
    if many:
        sys.exit(
            run_many(
                files=files,
                servers=given_servers,
                scratch=given_scratch,
                progress_interval_s=progress_interval,
                summary_json=summary_json,
            )
        )
    sys.exit(run_command(settings))


def _check_leased(files: Sequence[Path], given: Sequence[str]) -> None:
    if given:
        raise UsageError(f"--{given[0].replace('_', '-')} does not go with --leases")
    if any(str(file) == "-" for file in files):
        raise UsageError("standard input (-) does not go with --leases: other nodes cannot read it")
