"""`hs-client export`: plan, write, check what was written, say how to train from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from hs_client.export.casting import Cast
from hs_client.export.errors import (
    BadSample,
    CannotWrite,
    ExportIncomplete,
    NoModel,
    NothingVerified,
    OutInUse,
)
from hs_client.export.formats import format_class
from hs_client.export.layout import ExportSample, Finished, Format, Job, Unit
from hs_client.export.model_files import ModelFiles
from hs_client.export.plan_lines import growth_lines, plan_lines
from hs_client.export.progress import ExportProgress
from hs_client.export.record import (
    COMPLETE,
    INCOMPLETE,
    LOCK,
    SAMPLES,
    identity,
    missing_files,
    other_files,
    read_record,
    remove_temporaries,
    write_record,
)
from hs_client.export.samples import PlannedSample, Selection, read_samples, select, write_samples
from hs_client.export.serving import DraftIds, draft_ids, merged
from hs_client.export.settings import ExportSettings, Serving, parse_serving
from hs_client.export.vocabulary import TokenCounts, VocabularyMap, vocabulary_map
from hs_client.export.work import PROGRESS, UnitDone, Writer
from hs_client.info_command import open_dataset
from hs_client.tally import SHOWN_PROBLEMS, show_bytes
from hs_formats.durable import make_folders, write_durable
from hs_formats.errors import FormatError, PreflightError, UsageError
from hs_formats.hashing import xxh3_hex
from hs_formats.jsonl import UNREADABLE
from hs_formats.mask import spans_to_mask
from hs_formats.reader import HiddenStateDataset
from hs_formats.verified import VerifiedSet

__all__ = ["export_command"]

_DRAFT_CONFIG = "draft_config.json"


def export_command(settings: ExportSettings, echo: Callable[[str], None]) -> int:
    """Export, or go on with an export; what happens is told to `echo`, a line at a time.

    Returns:
        The exit code: 1 where samples were left out because they are broken or not verified.

    Raises:
        HsError: refused, or not all could be written; the classes of `hs_client.export.errors` say which.
    """
    settings = replace(settings, out=settings.out.absolute())
    open_dataset(settings.dataset)
    if settings.draft_config is not None:
        _read_draft_config(settings.draft_config)
    try:
        data = HiddenStateDataset(settings.dataset)
        verified = None if settings.unverified else VerifiedSet.read(data.paths)
    except (FormatError, OSError) as error:
        raise PreflightError(f"{settings.dataset}: {error}") from None
    return _Export(settings, data, verified, echo).run()


class _Export:
    """One export, from its settings to its exit code."""

    def __init__(
        self,
        settings: ExportSettings,
        data: HiddenStateDataset,
        verified: VerifiedSet | None,
        echo: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._data = data
        self._verified = verified
        self._echo = echo
        self._out = settings.out
        self._model = ModelFiles(settings.model or data.info.model)
        self._serving = settings.serving or _capturing_engine(data.info.capture)
        self._cast = Cast(data.info.dtype, settings.dtype)
        self._facts: dict[str, int] = {}

    def run(self) -> int:
        """Everything, in order."""
        wanted = identity(
            self._settings, self._data.info, model=self._model.path, serving=str(self._serving) if self._serving else ""
        )
        was = read_record(self._out, wanted)
        chosen = self._choose()
        if was is not None:
            begun = read_samples(self._out / SAMPLES, self._data.samples)
            self._tell(growth_lines(self._out, begun, chosen.samples))
            left_out = was.get("left_out", {})
        else:
            begun = chosen.samples
            left_out = {"broken": chosen.broken, "unverified": chosen.unverified, "untrained": chosen.untrained}
        if not begun:
            raise PreflightError(f"{self._settings.dataset} has no sample to export")
        job = Job(self._settings, self._data.info, self._model, begun)
        form = format_class(self._settings.format)(job)
        form.check()
        ids = self._draft_ids()
        self._tell(plan_lines(job, form.describe(), left_out, self._cast, self._serving, ids))
        complete = was is not None and was.get("state") == COMPLETE
        if complete and (gone := missing_files(self._out, form.units(), was or {})):
            self._echo(f"warning    {len(gone)} files of this export are gone, such as {gone[0]}: it is written again")
            complete = False
        if not complete:
            content = {"state": INCOMPLETE, "settings": wanted, "left_out": left_out}
            with _locked(self._out):
                if read_record(self._out, wanted) != was:
                    raise OutInUse(out=self._out)
                self._begin(content, form, begun)
                units = form.units()
                self._write(form, job, units)
                vocabulary = self._finish(form, job, units, ids)
                self._complete(self._whole(content, form, job, ids, vocabulary))
        self._echo(f"export     {self._out} is complete" + (" already" if complete else ""))
        self._tell(["train with", *(f"  {line}" for line in form.command())])
        return 1 if left_out.get("broken") or left_out.get("unverified") else 0

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._echo(line)

    def _choose(self) -> Selection:
        data = self._data
        chosen = select(data.sample_ids, data.samples, self._verified)
        if chosen.unverified and not chosen.samples:
            raise NothingVerified(missing=chosen.unverified, count=len(data.sample_ids), dataset=self._settings.dataset)
        return chosen

    def _draft_ids(self) -> DraftIds | None:
        if self._serving is None or self._settings.algorithm != "eagle3":
            return None
        try:
            architecture = self._model.architecture
        except NoModel:
            return None
        return draft_ids(self._data.info.boundaries, self._serving, architecture)

    # -- what is done

    def _begin(self, content: dict[str, Any], form: Format, begun: list[PlannedSample]) -> None:
        units = form.units()
        files = {at: unit.path for unit in units for at in range(unit.first, unit.stop)}
        try:
            write_samples(
                self._out / SAMPLES, [msgspec.structs.replace(sample, file=files[sample.index]) for sample in begun]
            )
            write_record(self._out, content)
        except OSError as error:
            raise CannotWrite(path=self._out, reason=error.strerror) from None

    def _load(self, sample: PlannedSample) -> ExportSample:
        try:
            found = self._data[sample.sample_id]
        except (FormatError, OSError, LookupError) as error:
            raise BadSample(sample_id=sample.sample_id, reason=error) from None
        states = self._cast.apply(sample.sample_id, found.hidden_states)
        return ExportSample(sample, found.input_ids, found.loss_mask, states, found.hidden_states)

    def _write(self, form: Format, job: Job, units: list[Unit]) -> None:
        progress = ExportProgress(len(job.samples), interval_s=self._settings.progress_interval_s)

        def done(unit: Unit, line: UnitDone) -> None:
            progress.add(unit.stop - unit.first, line.size_bytes)
            for name, value in line.facts.items():
                self._facts[name] = max(value, self._facts.get(name, value))

        writer = Writer(self._out, form, lambda at: self._load(job.samples[at]), jobs=self._settings.jobs, done=done)
        threads = torch.get_num_threads()
        # The jobs are the parallelism; torch's own threads would only get in their way.
        torch.set_num_threads(max(1, threads // self._settings.jobs))
        try:
            writer.run(units)
        finally:
            torch.set_num_threads(threads)
            progress.close()
        self._echo(f"written    {progress.samples:,} samples, {show_bytes(progress.bytes)} in {len(units):,} files")
        if writer.bad:
            for error in writer.bad[:SHOWN_PROBLEMS]:
                self._echo(f"           {error}")
            raise ExportIncomplete(
                count=len(writer.bad), total=len(job.samples), out=self._out, dataset=self._settings.dataset
            )

    def _finish(self, form: Format, job: Job, units: list[Unit], ids: DraftIds | None) -> VocabularyMap | None:
        counts = TokenCounts()
        try:
            for unit in units:
                mine = job.samples[unit.first : unit.stop]
                for sample, found in zip(mine, form.read_ids(self._out / unit.path, mine), strict=True):
                    if xxh3_hex([np.ascontiguousarray(found, dtype="<i8").tobytes()]) != sample.ids_xxh3:
                        raise CannotWrite(path=self._out / unit.path, reason="it does not hold the ids written to it")
                    spans = self._data.samples[sample.sample_id].mask_spans
                    mask = np.frombuffer(spans_to_mask(spans, sample.n), dtype=np.bool_)
                    counts.add(found, mask)
                    form.add_row(found, mask)
            vocabulary: VocabularyMap | None = None
            if self._settings.draft_vocab_size:
                vocabulary = vocabulary_map(counts.counts, self._settings.draft_vocab_size, self._model.vocab_size)
                self._echo(f"vocabulary {vocabulary.note}")
            draft = self._draft_config(ids)
            form.finish(Finished(counts, vocabulary, draft))
            if draft:
                write_durable(
                    self._out / _DRAFT_CONFIG, msgspec.json.format(msgspec.json.encode(draft), indent=1) + b"\n"
                )
        except OSError as error:
            raise CannotWrite(path=error.filename or self._out, reason=error.strerror or error) from None
        return vocabulary

    def _complete(self, content: dict[str, Any]) -> None:
        try:
            remove_temporaries(self._out)
            write_record(self._out, content)
            (self._out / PROGRESS).unlink(missing_ok=True)
        except OSError as error:
            raise CannotWrite(path=error.filename or self._out, reason=error.strerror or error) from None

    def _draft_config(self, ids: DraftIds | None) -> dict[str, Any]:
        changes: dict[str, Any] = dict(ids.config()) if ids is not None else {}
        if self._settings.algorithm != "eagle3":
            # Of these SpecForge and SGLang have one numbering, in every version: the layer whose output it is.
            changes["dflash_config"] = {"target_layer_ids": [b - 1 for b in self._data.info.boundaries]}
        if self._settings.draft_vocab_size:
            changes["draft_vocab_size"] = self._settings.draft_vocab_size
        base: dict[str, Any] = {}
        if self._settings.draft_config is not None:
            base = _read_draft_config(self._settings.draft_config)
        return merged(base, changes)

    def _whole(
        self,
        content: dict[str, Any],
        form: Format,
        job: Job,
        ids: DraftIds | None,
        vocabulary: VocabularyMap | None,
    ) -> dict[str, Any]:
        info = self._data.info
        files = {unit.path for unit in form.units()}
        serving: dict[str, Any] = {}
        if ids is not None:
            serving = {"engine": str(self._serving), "eagle_aux_hidden_state_layer_ids": ids.ids, "because": ids.why}
        return {
            **content,
            "state": COMPLETE,
            "samples": len(job.samples),
            "tokens": sum(sample.n for sample in job.samples),
            "trained_tokens": sum(sample.trained for sample in job.samples),
            "longest": job.longest,
            "boundaries": info.boundaries,
            "num_layers": info.num_layers,
            "hidden_size": info.hidden_size,
            "cast": self._cast.note,
            "layout": form.describe(),
            "facts": dict(sorted(self._facts.items())),
            "serving": serving,
            "vocabulary": vocabulary.note if vocabulary is not None else "",
            "other_files": other_files(self._out, files),
            "command": form.command(),
        }


def _read_draft_config(path: Path) -> dict[str, Any]:
    """The draft model's config that ``--draft-config`` names.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, *UNREADABLE) as error:
        raise UsageError(f"--draft-config {path} cannot be read: {error}") from None


def _capturing_engine(capture: dict[str, object]) -> Serving | None:
    try:
        return parse_serving(f"sglang:{capture.get('sglang', '')}")
    except UsageError:
        return None


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    try:
        make_folders(out)
        fd = os.open(out / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CannotWrite(path=out, reason=error.strerror) from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutInUse(out=out) from None
        yield
    finally:
        os.close(fd)
