"""A run that has something to send, from its dataset and ledger to its summary and exit code."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import anyio
import anyio.to_thread
import msgspec

from hs_client.adopt import Adopted, find_complete, wait_drained
from hs_client.errors import BadPrompts, DestinationBroken, ScratchBroken
from hs_client.failed_rows import failed_file, write_failed
from hs_client.generate.answers import Answers
from hs_client.history import History
from hs_client.leases.channel import Channel
from hs_client.leases.protocol import Hello, Over
from hs_client.leases.tenant import Tenant
from hs_client.ledger_log import LedgerLog, run_log
from hs_client.lines import shown
from hs_client.meanwhile import Meanwhile
from hs_client.neighbours import LEASED, overlapping_runs
from hs_client.plan import Fate, Plan
from hs_client.preflight import Place, ServerFacts
from hs_client.prepare import Source
from hs_client.progress import Progress
from hs_client.row_error import OTHER_CONTENT
from hs_client.runner import Runner
from hs_client.settings import RunSettings
from hs_client.sites import Sites
from hs_client.summary import summary, summary_lines
from hs_client.supply import Everything, Supply
from hs_client.sweep import sweep
from hs_client.tally import Tally
from hs_client.timeline_log import TimelineLog
from hs_formats.control import RunState
from hs_formats.durable import make_folders
from hs_formats.errors import FormatError, HsError, StorageError
from hs_formats.ledger import RunStarted
from hs_formats.names import CANARY_RUN

__all__ = ["INTERRUPTED", "Session"]

INTERRUPTED = 130


class Session:
    """Adopts what earlier runs have left, sends the rest, and says what has become of it.

    Args:
        settings: of the run.
        sites: servers, scratches and the dataset, which exists.
        plan: the rows.
        source: gives the samples.
        progress: shows `tally`.
        tally: counts, empty.
        started_s: when the command began, on the monotonic clock.
        channel: to who leases the rows, one range after the other; None: all rows are this run's.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        sites: Sites,
        plan: Plan,
        source: Source,
        progress: Progress,
        tally: Tally,
        started_s: float,
        channel: Channel | None = None,
    ) -> None:
        self._channel = channel
        self._tenant: Tenant | None = None
        self._settings = settings
        self._sites = sites
        self._places: list[Place] = list(sites.places.values())
        self._servers: list[ServerFacts] = [server for _, server in sites.usable]
        self._paths = self._places[0].paths
        self._plan = plan
        self._source = source
        self._progress = progress
        self._tally = tally
        self._started_s = started_s
        self._to_send = 0
        self._run = _fresh_run(self._places, plan.history)
        self._meanwhile = Meanwhile(
            self._paths.ledger,
            self._run,
            known_bytes=plan.history.ledger_bytes,
            ours=plan.is_mine,
            fetch=lambda: self._paths.refresh("ledger"),
        )
        self._answers: tuple[Answers, LedgerLog] | None = None
        self._failed: set[str] = set()
        self._timeline = TimelineLog(
            self._paths.timeline_file(self._run), tally, say=progress.say, publish=self._paths.publish
        )
        tally.on_failed = lambda sample: self._failed.add(sample.where)

    def _count_to_send(self, left: int) -> None:
        limit = self._settings.limit
        self._to_send = left if limit is None else min(left, limit)

    def run(self) -> int:
        """Do it; returns the exit code.

        Raises:
            HsError: what is left stays pending.
        """
        settings, plan, tally, paths = self._settings, self._plan, self._tally, self._paths
        self._progress.say(f"run        {self._run}")
        for place in self._places:
            self._register(place)
        ledger = run_log(paths, "ledger", self._run, timeout_s=settings.mover_timeout_s)
        if self._channel is None:
            self._count_to_send(plan.left)
            tally.total = self._to_send + plan.counts[Fate.REJECTED]
            tally.earlier = plan.counts[Fate.DONE]
            tally.identical = plan.counts[Fate.IDENTICAL]
        error: HsError | None = None
        interrupted = False
        try:
            self._begin_ledger(ledger)
            self._begin_answers()
            interrupted = anyio.run(self._drive, ledger, backend_options=_event_loop())
        except HsError as caught:
            error = caught
        finally:
            ledger.close()
            if self._answers is not None:
                self._answers[1].close()
            self._progress.close()
        self._find_conflicts()
        pending = self._pending
        code = error.exit_code if error is not None else INTERRUPTED if interrupted else tally.exit_code
        reason = "" if error is None else str(error)
        self._timeline.end(code, reason)
        self._finish(pending, code, reason)
        if error is not None:
            raise error
        if interrupted:
            self._progress.say("interrupted: repeat the command to go on")
        return code

    @property
    def _pending(self) -> int:
        t = self._tally
        # Rows beyond the limit are pending as well; rows beyond the leases are others'.
        return (
            max(0, self._plan.left - t.done - t.failed - t.refused - t.elsewhere) if self._channel is None else t.left
        )

    def _find_conflicts(self) -> None:
        """Name the samples that another client has got done at the same time, with other content."""
        try:
            found = self._meanwhile.conflicts()
        except OSError as error:
            self._progress.say(f"warning: cannot see what other clients did ({error}): `hs-client verify` can")
            return
        for each in found:
            which = "that record counts" if each.counts else "the record of this run counts"
            reason = f"id {each.sample_id!r} was done by run {each.run} as well ({which}), {OTHER_CONTENT}"
            self._tally.conflict(each.where, reason)

    def _finish(self, pending: int, code: int, error: str) -> None:
        spent_s = time.monotonic() - self._started_s
        for line in summary_lines(self._tally, spent_s=spent_s, pending=pending, ledger=True):
            self._progress.say(line)
        failed = self._write_failed()
        if pending and self._settings.command:
            self._progress.say(f"to go on   {self._settings.command}")
        facts = summary(
            self._tally,
            spent_s=spent_s,
            pending=pending,
            exit_code=code,
            run=self._run,
            dataset=self._paths.shown,
            servers=[server.url for server in self._servers],
            failed_rows=failed,
            error=error,
        )
        if self._channel is not None:
            if self._tenant is not None:
                self._tenant.tell_ended()
            self._channel.over(Over(exit_code=code, error=error, summary=facts))
        path = self._settings.summary_json
        if path is not None:
            try:
                path.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2) + b"\n")
            except OSError as caught:
                self._progress.say(f"warning: cannot write the summary to {path}: {caught.strerror or caught}")

    def _write_failed(self) -> str:
        """Keep the failed rows; returns where, or an empty text where there are none or they cannot be kept."""
        if not self._failed:
            return ""
        path = failed_file(self._paths.root, self._run)
        try:
            count = write_failed(self._plan, self._failed, path)
        except (OSError, BadPrompts) as error:
            self._progress.say(f"warning: cannot keep the failed rows in {path}: {error}")
            return ""
        self._progress.say(f"failed     {count} rows are in {path}, to be sent again with --dataset {self._paths.name}")
        return str(path)

    def _register(self, place: Place) -> None:
        control, dataset = place.control, self._paths.name
        shard = LEASED if self._channel is not None else "{}/{}".format(*self._settings.shard)
        state = RunState(run=self._run, dataset=dataset, pid=os.getpid(), shard=shard, dst=place.mover.dst)
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

    def _begin_ledger(self, ledger: LedgerLog) -> None:
        first = RunStarted(
            run=self._run,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            inputs=[shown(path) for path in self._settings.files],
            servers=[server.url for server in self._servers],
            version=_version(),
        )
        try:
            ledger.write_now([first])
        except OSError as error:
            raise DestinationBroken(path=ledger.path, reason=error.strerror or error) from None

    def _begin_answers(self) -> None:
        """Read the answers of earlier runs, and have a place for those of this one."""
        if self._settings.generate is None:
            return
        paths = self._paths
        known = Answers(paths)
        try:
            make_folders(paths.responses)
            known.read()
        except OSError as error:
            raise DestinationBroken(path=paths.responses, reason=error.strerror or error) from None
        if len(known):
            self._progress.say(f"answers    {len(known):,} of earlier runs are known")
        log = run_log(
            paths,
            "responses",
            self._run,
            timeout_s=self._settings.mover_timeout_s,
            trouble="the file of answers {path} cannot be written: {reason}",
        )
        self._answers = known, log

    def _scratch_broken(self, error: OSError) -> ScratchBroken:
        path, reason = error.filename or self._places[0].control.scratch, error.strerror or error
        return ScratchBroken(path=path, reason=reason, left=self._plan.left)

    async def _drive(self, ledger: LedgerLog) -> bool:
        """Adopt, then run; True when interrupted."""
        adoptable = await self._find_adoptable()
        if self._channel is None:
            await self._adopt(ledger, adoptable)
            adoptable.clear()
        self._progress.start(self._tally.total)
        try:
            runner = Runner(
                self._settings,
                run=self._run,
                sites=self._sites.usable,
                source=self._source,
                supply=await self._supply(),
                adoptable=adoptable,
                ledger=ledger,
                tally=self._tally,
                meanwhile=self._meanwhile,
                say=self._progress.say,
                status=self._progress.text,
                answers=self._answers,
            )
        except OSError as caught:
            raise self._scratch_broken(caught) from None
        self._progress.follow(runner.snapshot)
        self._timeline.follow(runner.snapshot, runner.limiter)
        error: HsError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._progress.serve)
            group.start_soon(self._timeline.serve)
            group.start_soon(self._signals, runner)
            try:
                await runner.run()
            except HsError as caught:
                error = caught
            group.cancel_scope.cancel()
        if error is not None:
            raise error
        return runner.interrupted

    async def _supply(self) -> Supply:
        if self._channel is None:
            return Everything(self._source.all_rows())
        plan, settings = self._plan, self._settings
        hello = Hello(
            run=self._run,
            rows=plan.numbers,
            left=plan.left,
            inputs_hash=plan.inputs_hash,
            done=plan.counts[Fate.DONE],
            rejected=plan.counts[Fate.REJECTED],
            identical=plan.counts[Fate.IDENTICAL],
            dataset=self._paths.shown,
            marks=await anyio.to_thread.run_sync(self._marks),
        )
        concurrency = settings.concurrency if settings.generate is None else settings.generate.concurrency
        self._tenant = Tenant(
            self._channel,
            hello=hello,
            plan=plan,
            tally=self._tally,
            low=concurrency * len(self._servers),
            text=self._progress.text,
            say=self._progress.say,
        )
        return self._tenant

    def _marks(self) -> tuple[str, ...]:
        """What tells the dataset's place from others of the same path: facts of a file that was made once."""
        if not self._paths.local:
            return (self._paths.shown,)
        try:
            found = self._paths.info.stat()
        except OSError:
            return ()
        # File systems without numbers of their own for files draw them anew on each machine, but keep the time.
        return f"file {found.st_ino}", f"made {found.st_mtime_ns}"

    async def _find_adoptable(self) -> dict[bytes, Adopted]:
        """Complete records that earlier runs had sent for and not noted, by the digests of their samples' ids."""
        plan = self._plan
        history = plan.history
        if not history.open:
            return {}
        for place in self._places:
            try:
                await wait_drained(
                    place,
                    history.open_runs,
                    timeout_s=self._settings.mover_timeout_s,
                    left=plan.left,
                    say=self._progress.say,
                )
            except OSError as error:
                raise self._scratch_broken(error) from None
        try:
            found = await anyio.to_thread.run_sync(find_complete, self._places[0], history)
        except OSError as error:
            raise DestinationBroken(path=self._paths.shown, reason=error.strerror or error) from None
        return {each.key: each for each in found}

    async def _adopt(self, ledger: LedgerLog, adoptable: Mapping[bytes, Adopted]) -> None:
        plan, tally = self._plan, self._tally
        adopted = list(adoptable.values())
        try:
            await anyio.to_thread.run_sync(ledger.write_now, [found.done for found in adopted])
        except OSError as error:
            raise DestinationBroken(path=self._paths.shown, reason=error.strerror or error) from None
        for found in adopted:
            plan.history.done.add(found.key)
            if plan.is_mine(found.intent.sample_id):  # else it is done all the same, but none of this run's samples
                tally.adopt(found.intent.n, found.intent.mask, found.lines)
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
                        f"interrupted: nothing more is sent, {runner.in_flight} requests in flight and"
                        f" {runner.to_store} records get half a minute; again to leave at once"
                    )
                    group.start_soon(runner.interrupt)


def _event_loop() -> dict[str, bool]:
    """uvloop where it is installed: a tenth to a quarter less processor time."""
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return {}
    return {"use_uvloop": True}


def _fresh_run(places: list[Place], history: History) -> str:
    taken = {CANARY_RUN, *history.runs}
    for place in places:
        taken |= {path.stem for path in place.control.runs.glob("*.json")}
    while True:
        run = secrets.token_hex(4)
        if run not in taken and not (places[0].paths.data / run).exists():
            return run


def _version() -> str:
    try:
        return version("hs-extract")
    except PackageNotFoundError:
        return "unknown"
