"""`hs-client run` from its settings to its exit code: preflight, plan, adoption, the run itself, the summary."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio
import anyio.to_thread

from hs_client._http import shared_tls
from hs_client.adopt import find_complete, wait_drained
from hs_client.claim import live_runs
from hs_client.doctor_check import ensure_examined
from hs_client.errors import BadPrompts, DestinationBroken, NoMover, ScratchBroken, TooFewFiles
from hs_client.history import History, read_history
from hs_client.identity import dataset_info, read_vocab_size
from hs_client.ledger_log import LedgerLog
from hs_client.lines import shown
from hs_client.neighbours import overlapping_runs
from hs_client.plan import Fate, Plan, make_plan
from hs_client.preflight import Place, ServerFacts, check_dataset, check_mover, check_server, find_place
from hs_client.prepare import Limits, Source
from hs_client.progress import Progress, summary_lines
from hs_client.runner import Runner
from hs_client.settings import RunSettings, dataset_name
from hs_client.sweep import sweep
from hs_client.tally import Tally, show_bytes
from hs_client.tokenizing import load_tokenizer
from hs_formats.control import ControlFolder, RunState
from hs_formats.errors import FormatError, HsError, StorageError
from hs_formats.ledger import RunStarted
from hs_formats.names import CANARY_RUN

__all__ = ["run_command"]

INTERRUPTED = 130

_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
"""How gzip, zstd and zip files begin; no JSON does."""

_OTHER_FILES = 100
"""Files besides a connection for each worker: ledgers, manifests, scratch, modules."""


def run_command(settings: RunSettings) -> int:
    """Do one run; returns its exit code.

    Raises:
        HsError: with the exit code that belongs to it.
    """
    started_s = time.monotonic()
    shared_tls()  # loads the HTTP library, which is nothing for the event loop
    _check_files(settings.files)
    _allow_files(settings.concurrency)
    dataset = dataset_name(settings.dataset, settings.files)
    tally = Tally()
    progress = Progress(tally, interval_s=settings.progress_interval_s, state=lambda: (0, 0, ""))
    place, server, trouble = _look_around(settings, dataset)
    if place is None or (trouble is not None and not place.paths.ledger.is_dir()):
        raise trouble or NoMover(scratch=settings.scratch, reason="none ever did")
    history = _history(place)
    fits = 0 if server is None else _limits(settings, server).fits
    plan = make_plan(settings.files, history, shard=settings.shard, context_tokens=fits)
    _facts(progress, settings, place=place, server=server, plan=plan)
    if not plan.left:
        return _leave_it_at_that(progress, plan, "all usable rows are done: nothing to send")
    if trouble is not None or server is None:
        raise trouble or NoMover(scratch=settings.scratch, reason="none ever did")
    if not settings.dry_run:
        ensure_examined(server, place.control, skip=not settings.doctor, say=progress.say)
    return _Session(settings, place=place, server=server, plan=plan, progress=progress, tally=tally).run(started_s)


def _check_files(files: Sequence[Path]) -> None:
    for path in files:
        if not path.is_file():
            raise BadPrompts(path=shown(path), reason="no such file" if not path.exists() else "not a file")
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise BadPrompts(path=shown(path), reason=error.strerror or error) from None
        if magic.startswith(_COMPRESSED):
            raise BadPrompts(path=shown(path), reason="it is compressed: unpack it first")


def _limits(settings: RunSettings, server: ServerFacts) -> Limits:
    return Limits(
        server.marker.context_length,
        read_vocab_size(server.marker.model),
        server.longest_prompt,
        settings.max_length,
        settings.truncate,
    )


def _allow_files(concurrency: int) -> None:
    need = concurrency + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return
    if hard != resource.RLIM_INFINITY and hard < need:
        raise TooFewFiles(concurrency=concurrency, need=need, limit=hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))


def _look_around(settings: RunSettings, dataset: str) -> tuple[Place | None, ServerFacts | None, HsError | None]:
    """Place and server, and the first thing that is wrong with them, in the order in which a user would mend it."""
    control = ControlFolder(settings.scratch)
    place: Place | None = None
    server: ServerFacts | None = None
    trouble: HsError | None = None
    try:
        server = anyio.run(check_server, settings.server, control)
    except HsError as error:
        trouble = error
    try:
        place = find_place(settings.scratch, dataset)
        check_mover(place)
    except HsError as error:
        trouble = trouble or error
    return place, server, trouble


def _history(place: Place) -> History:
    try:
        return read_history(place.paths, live_runs=live_runs(place.control))
    except OSError as error:
        raise DestinationBroken(path=place.paths.ledger, reason=error.strerror or error) from None


def _facts(progress: Progress, settings: RunSettings, *, place: Place, server: ServerFacts | None, plan: Plan) -> None:
    mover = place.mover
    if server is not None:
        m = server.marker
        layers = f"boundaries {m.boundaries} of {m.num_layers} layers and the last state"
        progress.say(f"server     {server.url}: {m.model}, SGLang {m.sglang_version}, {server.ranks} armed")
        progress.say(f"capture    {layers}, {m.dtype}, {m.bytes_per_token:,} bytes a token, writers {m.writers}")
        progress.say(f"tokenizer  {settings.tokenizer or server.tokenizer}")
    limit = f"limit {show_bytes(mover.limit_bytes)} of {show_bytes(mover.capacity_bytes)}"
    progress.say(f"scratch    {settings.scratch}: {limit}")
    progress.say(f"dataset    {place.paths.root}")
    c = plan.counts
    bad = f", {c[Fate.REJECTED]} rejected" if c[Fate.REJECTED] else ""
    same = f", {c[Fate.IDENTICAL]} identical" if c[Fate.IDENTICAL] else ""
    away = f", {c[Fate.ELSEWHERE]} of other shards" if c[Fate.ELSEWHERE] else ""
    progress.say(f"rows       {plan.rows}: {c[Fate.DONE]} done, {plan.left} to send{bad}{same}{away}")


def _leave_it_at_that(progress: Progress, plan: Plan, why: str) -> int:
    tally = Tally(earlier=plan.counts[Fate.DONE], identical=plan.counts[Fate.IDENTICAL])
    for judged in Plan(plan.files, plan.history, plan.shard, plan.max_line_bytes, plan.context_tokens).judge_all():
        if judged.fate is Fate.REJECTED:
            tally.rejected += 1
            tally.problem(f"{judged.where}: rejected: {judged.reason}")
    progress.say(why)
    for line in summary_lines(tally, spent_s=0.0, pending=plan.left):
        progress.say(line)
    return tally.exit_code


class _Session:
    """A run that has something to send."""

    def __init__(
        self,
        settings: RunSettings,
        *,
        place: Place,
        server: ServerFacts,
        plan: Plan,
        progress: Progress,
        tally: Tally,
    ) -> None:
        self._settings = settings
        self._place = place
        self._server = server
        self._plan = plan
        self._progress = progress
        self._tally = tally
        self._tokenizer = settings.tokenizer or server.tokenizer
        self._to_send = 0
        self._unsent = 0

    def _count_to_send(self, left: int) -> None:
        limit = self._settings.limit
        self._to_send = left if limit is None else min(left, limit)
        self._unsent = left - self._to_send

    def run(self, started_s: float) -> int:
        settings, plan, tally = self._settings, self._plan, self._tally
        source = Source(
            plan,
            limits=_limits(settings, self._server),
            load=lambda: load_tokenizer(
                self._tokenizer, trust_remote_code=settings.trust_remote_code, chat=settings.chat
            ),
            limit=settings.limit,
            say=self._progress.say,
        )
        if plan.needs_tokenizer:
            source.load_tokenizer()  # before the dataset is made: its files, by hub name, are known only then
        info = settings.chat.describe(dataset_info(self._server.marker, self._tokenizer))
        new = check_dataset(self._place.paths, info, create=not settings.dry_run)
        self._progress.say(f"dataset    is {'new' if new else 'there, with the same settings'}")
        if settings.dry_run:
            return _leave_it_at_that(self._progress, plan, "dry run: nothing is sent")
        run = _fresh_run(self._place, plan.history)
        self._progress.say(f"run        {run}")
        self._register(run)
        paths = self._place.paths
        ledger = LedgerLog(paths.ledger_file(run), timeout_s=settings.mover_timeout_s, manifests=paths.manifest)
        self._count_to_send(plan.left)
        tally.total = self._to_send + plan.counts[Fate.REJECTED]
        tally.earlier = plan.counts[Fate.DONE]
        tally.identical = plan.counts[Fate.IDENTICAL]
        error: HsError | None = None
        interrupted = False
        try:
            self._begin_ledger(ledger, run)
            interrupted = anyio.run(self._drive, run, source, ledger)
        except HsError as caught:
            error = caught
        finally:
            ledger.close()
            self._progress.close()
        unfinished = error is not None or interrupted
        pending = self._unsent + (max(0, tally.total - tally.done - tally.failed - tally.rejected) if unfinished else 0)
        for line in summary_lines(tally, spent_s=time.monotonic() - started_s, pending=pending):
            self._progress.say(line)
        if error is not None:
            raise error
        if interrupted:
            self._progress.say("interrupted: repeat the command to go on")
            return INTERRUPTED
        return tally.exit_code

    def _register(self, run: str) -> None:
        control, dataset, shard = self._place.control, self._place.paths.root.name, self._settings.shard
        state = RunState(run=run, dataset=dataset, pid=os.getpid(), shard="{}/{}".format(*shard))
        try:
            control.create()
            sweep(control)
            others = overlapping_runs(control, dataset, shard)
            control.register_run(state)
        except (OSError, FormatError) as error:
            raise StorageError(f"cannot write to {control.root} ({error}): see to the scratch folder") from None
        for other in others:
            self._progress.say(
                f"warning: process {other.pid} (run {other.run}, shard {other.shard}) works on this dataset too: rows"
                " of both may be captured twice; give each client a --shard of its own"
            )

    def _begin_ledger(self, ledger: LedgerLog, run: str) -> None:
        first = RunStarted(
            run=run,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            inputs=[shown(path) for path in self._settings.files],
            servers=[self._server.url],
            version=_version(),
        )
        try:
            ledger.write_now([first])
        except OSError as error:
            raise DestinationBroken(path=ledger.path, reason=error.strerror or error) from None

    async def _drive(self, run: str, source: Source, ledger: LedgerLog) -> bool:
        """Adopt, then run; True when interrupted."""
        await self._adopt(ledger)
        self._progress.start(self._tally.total)
        try:
            runner = Runner(
                self._settings,
                run=run,
                place=self._place,
                server=self._server,
                source=source,
                ledger=ledger,
                tally=self._tally,
                say=self._progress.say,
            )
        except OSError as caught:
            path, reason = caught.filename or self._settings.scratch, caught.strerror or caught
            raise ScratchBroken(path=path, reason=reason, left=self._plan.left) from None
        self._progress.follow(lambda: (runner.in_flight, runner.to_store, runner.waiting))
        error: HsError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._progress.serve)
            group.start_soon(self._signals, runner)
            try:
                await runner.run()
            except HsError as caught:
                error = caught
            group.cancel_scope.cancel()
        if error is not None:
            raise error
        return runner.interrupted

    async def _adopt(self, ledger: LedgerLog) -> None:
        plan, tally = self._plan, self._tally
        history = plan.history
        if not history.open:
            return
        try:
            await wait_drained(
                self._place,
                history.open_runs,
                timeout_s=self._settings.mover_timeout_s,
                left=plan.left,
                say=self._progress.say,
            )
        except OSError as error:
            path, reason = error.filename or self._settings.scratch, error.strerror or error
            raise ScratchBroken(path=path, reason=reason, left=plan.left) from None
        try:
            adopted = await anyio.to_thread.run_sync(find_complete, self._place, history)
            await anyio.to_thread.run_sync(ledger.write_now, [found.done for found in adopted])
        except OSError as error:
            raise DestinationBroken(path=self._place.paths.root, reason=error.strerror or error) from None
        for found in adopted:
            history.done.add(found.key)
            if found.key not in plan.first or not plan.in_shard(found.key):
                continue  # of another file or shard: done all the same, but none of this run's samples
            tally.done += 1
            tally.adopted += 1
            tally.tokens += found.intent.n
            tally.trained_tokens += sum(stop - start for start, stop in found.intent.mask)
            tally.raw_bytes += sum(line.raw_bytes for line in found.lines)
            tally.stored_bytes += sum(line.stored_bytes for line in found.lines)
        if adopted:
            self._count_to_send(plan.left - tally.adopted)
            tally.total = tally.adopted + self._to_send + plan.counts[Fate.REJECTED]
            self._progress.say(f"adopted {len(adopted)} records that earlier runs had sent for and not noted")

    async def _signals(self, runner: Runner) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as group:
                async for _ in signals:
                    if runner.interrupted:
                        runner.stop()
                        return
                    self._progress.say(
                        f"interrupted: {runner.in_flight} requests in flight get a few seconds; again to leave at once"
                    )
                    group.start_soon(runner.interrupt)


def _fresh_run(place: Place, history: History) -> str:
    taken = {CANARY_RUN, *history.runs, *(path.stem for path in place.control.runs.glob("*.json"))}
    while True:
        run = secrets.token_hex(4)
        if run not in taken and not (place.paths.data / run).exists():
            return run


def _version() -> str:
    try:
        return version("hs-extract")
    except PackageNotFoundError:
        return "unknown"
