"""`hs-client run` from its settings to its exit code: preflight, plan, adoption, the run itself, the summary."""

from __future__ import annotations

import resource
import time

from hs_client._http import shared_tls
from hs_client.check_budget import check_budget
from hs_client.claim import live_runs
from hs_client.doctor_check import ensure_examined
from hs_client.errors import DestinationBroken, NoMover, NoRows, TooFewFiles
from hs_client.generate.answers import measure_answers
from hs_client.generate.options import GenerateOptions
from hs_client.generate.server_checks import check_generation, generation_notes
from hs_client.history import History, read_history
from hs_client.identity import dataset_info, read_vocab_size
from hs_client.input_files import open_inputs
from hs_client.leases.channel import Channel
from hs_client.leases.protocol import Over
from hs_client.limits import Limits
from hs_client.plan import Fate, Plan, make_plan
from hs_client.preflight import Place, ServerFacts, check_dataset
from hs_client.prepare import Source
from hs_client.progress import Progress
from hs_client.session import Session
from hs_client.settings import RunSettings, dataset_name
from hs_client.sites import Sites, look_around
from hs_client.summary import summary_lines
from hs_client.tally import Tally, show_bytes
from hs_client.tokenizing import load_tokenizer
from hs_formats.errors import FormatError, HsError

__all__ = ["run_command"]

_OTHER_FILES = 100
"""Files besides a connection for each worker: ledgers, manifests, scratch, modules."""


def run_command(settings: RunSettings) -> int:
    """Do one run; returns its exit code.

    Raises:
        HsError: with the exit code that belongs to it.
    """
    if settings.leases is None:
        return _run(settings)
    channel = Channel(settings.leases)
    try:
        return _run(settings, channel)
    except HsError as error:
        channel.over(Over(exit_code=error.exit_code, error=str(error)))
        raise


def _run(settings: RunSettings, channel: Channel | None = None) -> int:
    started_s = time.monotonic()
    shared_tls()  # loads the HTTP library, which is nothing for the event loop
    inputs = open_inputs(settings.files)
    generate = settings.generate
    _allow_files(settings.concurrency + (0 if generate is None else generate.concurrency), len(settings.servers))
    dataset = dataset_name(settings.dataset, settings.files)
    tally = Tally()
    progress = Progress(tally, interval_s=settings.progress_interval_s)
    sites = look_around(settings.servers, dataset)
    place, server, trouble = sites.place, sites.widest, sites.trouble
    if place is None or (trouble is not None and not place.paths.ledger.is_dir()):
        raise trouble or NoMover(scratch=settings.servers[0].scratch, reason="none ever did")
    history = _history(place)
    if settings.retry_rejected:
        history.rejected.clear()
    limits = None if server is None else _limits(settings, server)
    plan = make_plan(
        inputs,
        history,
        shard=settings.shard,
        limits=limits,
        cache_root=place.paths.root,
        say=progress.say,
        regenerate="" if generate is None else generate.regenerate,
        variants=1 if generate is None else generate.variants,
        numbered=channel is not None,
    )
    if not plan.rows:
        raise NoRows(path=" and ".join(plan.empty))
    _facts(progress, settings, sites=sites, plan=plan)
    if not plan.left and channel is None:  # a leased client still reports what is rejected of the rows that it gets
        _check_settings(settings, place, server)
        why = "all usable rows are done" if plan.counts[Fate.DONE] else "no usable row is left"
        return _leave_it_at_that(progress, plan, f"{why}: nothing to send")
    if trouble is not None or server is None:
        raise trouble or NoMover(scratch=settings.servers[0].scratch, reason="none ever did")
    for unused in sites.troubles:
        progress.say(f"warning: a server is left out: {unused}")
    if generate is not None:
        _look_at_generation(generate, sites, progress)
    if not settings.dry_run:
        for at, each in sites.usable:
            ensure_examined(each, at.control, skip=not settings.doctor, say=progress.say)
    source = _source(settings, place, server, plan, progress)
    if plan.needs_tokenizer:
        source.load_tokenizer()  # before the dataset is made: its files, by hub name, are known only then
    tokenizer = settings.tokenizer or server.tokenizer
    info = settings.describe(dataset_info(server.marker, tokenizer))
    new = check_dataset(place.paths, info, create=not settings.dry_run)
    progress.say(f"dataset    is {'new' if new else 'there, with the same settings'}")
    check_budget(
        source.volume(),
        places=sites.places.values(),
        server=server,
        history=history,
        say=progress.say,
        force=settings.force,
    )
    if settings.dry_run:
        return _leave_it_at_that(progress, plan, "dry run: nothing is sent")
    _save_caches(plan, place, progress)
    session = Session(
        settings,
        sites=sites,
        plan=plan,
        source=source,
        progress=progress,
        tally=tally,
        started_s=started_s,
        channel=channel,
    )
    return session.run()


def _check_settings(settings: RunSettings, place: Place, server: ServerFacts | None) -> None:
    """See that the dataset, of which nothing is left to do, was made with these settings.

    Raises:
        DatasetMismatch: with others: what was asked for is not what is there.
    """
    if not place.paths.info.exists():
        return
    try:
        info = place.paths.read_info()
    except (OSError, FormatError) as error:
        raise DestinationBroken(path=place.paths.info, reason=error) from None
    if server is not None:
        info = dataset_info(server.marker, settings.tokenizer or server.tokenizer)
    if info is not None:
        check_dataset(place.paths, settings.describe(info), create=False)


def _look_at_generation(options: GenerateOptions, sites: Sites, progress: Progress) -> None:
    """Say how answers are generated, and what of that is slow.

    Raises:
        PreflightError: a server cannot do it.
    """
    progress.say(f"generate   {options.described}, {options.variants} a row")
    for _, server in sites.usable:
        check_generation(server.info, options, url=server.url)
        for note in generation_notes(server.info, options, mode=server.marker.capture_mode):
            progress.say(f"note       {server.url}: {note}")


def _save_caches(plan: Plan, place: Place, progress: Progress) -> None:
    try:
        plan.save_caches(place.paths.root)
    except OSError as error:
        reason = error.strerror or error
        progress.say(f"warning    {place.paths.root} takes no cache of the rows ({reason}): a resume takes longer")


def _limits(settings: RunSettings, server: ServerFacts) -> Limits:
    return Limits(
        server.marker.context_length,
        read_vocab_size(server.marker.model),
        server.longest_prompt,
        settings.max_length,
        settings.truncate,
        settings.generate is not None,
    )


def _source(settings: RunSettings, place: Place, server: ServerFacts, plan: Plan, progress: Progress) -> Source:
    tokenizer = settings.tokenizer or server.tokenizer
    each, bound = 0, False
    if settings.generate is not None:
        try:
            known = measure_answers(place.paths, settings.generate.settings_hash)
        except OSError as error:
            raise DestinationBroken(path=place.paths.responses, reason=error.strerror or error) from None
        each, bound = settings.generate.max_new_tokens, not known.answers
        each = each if bound else round(known.tokens / known.answers)
    return Source(
        plan,
        limits=_limits(settings, server),
        load=lambda: load_tokenizer(
            tokenizer, trust_remote_code=settings.trust_remote_code, chat=settings.chat, lean=True
        ),
        limit=settings.limit,
        say=progress.say,
        answer_tokens=each,
        answers_bound=bound,
    )


def _allow_files(concurrency: int, servers: int) -> None:
    need = concurrency * servers + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise TooFewFiles(concurrency=concurrency, need=need, limit=hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def _history(place: Place) -> History:
    try:
        return read_history(place.paths, live_runs=live_runs(place.control))
    except OSError as error:
        raise DestinationBroken(path=place.paths.ledger, reason=error.strerror or error) from None


def _facts(progress: Progress, settings: RunSettings, *, sites: Sites, plan: Plan) -> None:
    for _, server in sites.usable:
        m = server.marker
        layers = f"boundaries {m.boundaries} of {m.num_layers} layers and the last state"
        progress.say(f"server     {server.url}: {m.model}, SGLang {m.sglang_version}, {server.ranks} armed")
        progress.say(f"capture    {layers}, {m.dtype}, {m.bytes_per_token:,} bytes a token, writers {m.writers}")
    if sites.widest is not None:
        progress.say(f"tokenizer  {settings.tokenizer or sites.widest.tokenizer}")
    for place in sites.places.values():
        mover = place.mover
        limit = f"limit {show_bytes(mover.limit_bytes)} of {show_bytes(mover.capacity_bytes)}"
        progress.say(f"scratch    {place.control.scratch}: {limit}")
    if sites.place is not None:
        progress.say(f"dataset    {sites.place.paths.shown}")
    c = plan.counts
    bad = f", {c[Fate.REJECTED]} rejected" if c[Fate.REJECTED] else ""
    same = f", {c[Fate.IDENTICAL]} identical" if c[Fate.IDENTICAL] else ""
    away = f", {c[Fate.ELSEWHERE]} of other shards" if c[Fate.ELSEWHERE] else ""
    for name in plan.empty:
        progress.say(f"warning    {name} holds no row")
    progress.say(f"rows       {plan.rows}: {c[Fate.DONE]} done, {plan.left} to send{bad}{same}{away}")


def _leave_it_at_that(progress: Progress, plan: Plan, why: str) -> int:
    tally = Tally(earlier=plan.counts[Fate.DONE], identical=plan.counts[Fate.IDENTICAL])
    for judged in plan.again([Fate.REJECTED]):
        tally.reject(judged.where, judged.reason)
    progress.say(why)
    for line in summary_lines(tally, spent_s=0.0, pending=plan.left, ledger=False):
        progress.say(line)
    return tally.exit_code
