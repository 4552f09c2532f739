"""`hs-client split` and `hs-client merge` as the command line has them; each returns its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hs_client.subset.query import Query
from hs_client.subset.sources import Source, open_source
from hs_client.subset.writing import Chosen, Written, joined_info, write_dataset
from hs_client.tally import show_bytes
from hs_formats.errors import PreflightError, UsageError
from hs_formats.location import Location

__all__ = ["merge_command", "split_command"]

_SHOWN = 5

Say = Callable[[str], None]


def split_command(
    dataset: Location, out: Path, query: Query, *, copy: bool = False, dry_run: bool = False, say: Say
) -> int:
    """Make `out` of the samples of `dataset` that `query` takes.

    Returns:
        1 where broken samples or ids that nobody has were passed over, else 0.

    Raises:
        UsageError: no sample is meant, or `out` cannot be made.
        PreflightError: this is no dataset.
        StorageError: the disk fails.
    """
    source = open_source(dataset)
    chosen = [Chosen(source, each, each.sample.sample_id) for each in source.candidates if query.takes(each)]
    incomplete = _tell_broken([source], say)
    unknown = sorted(set(query.ids or ()) - {each.sample.sample_id for each in source.candidates})
    if unknown:
        say(f"warning    {len(unknown)} of the ids are no samples of {dataset}: {_some(unknown)}")
    if not chosen:
        raise UsageError(f"no sample of {dataset} is meant: {len(source.candidates)} are there")
    say(f"chosen     {len(chosen)} of {len(source.candidates)} samples")
    if not dry_run:
        _tell(write_dataset(out, source.info, chosen, copy=copy), out, say)
    return int(incomplete or bool(unknown))


def merge_command(
    out: Path,
    datasets: Sequence[Location],
    *,
    prefix_ids: bool = False,
    copy: bool = False,
    dry_run: bool = False,
    say: Say,
) -> int:
    """Make `out` of all samples of `datasets`, which were made alike.

    Of a sample that several have for the same prompt the first counts, or the first verified one. With `prefix_ids`
    each sample id becomes ``<dataset>/<id>``.

    Returns:
        1 where broken samples were passed over, else 0.

    Raises:
        UsageError: `out` cannot be made, or two datasets have one name.
        PreflightError: the datasets were made otherwise, or different prompts have one sample id.
        StorageError: the disk fails.
    """
    if prefix_ids and len(set(map(_name, datasets))) < len(datasets):
        raise UsageError("--prefix-ids needs datasets of different names")
    sources = [open_source(dataset) for dataset in datasets]
    info = joined_info([(source.paths.location, source.info) for source in sources])
    incomplete = _tell_broken(sources, say)
    chosen: dict[str, Chosen] = {}
    parts: dict[str, Chosen] = {}
    again = 0
    for source, dataset in zip(sources, datasets, strict=True):
        for candidate in source.candidates:
            own = candidate.sample.sample_id
            each = Chosen(source, candidate, f"{_name(dataset)}/{own}" if prefix_ids else own)
            first = chosen.setdefault(each.sample_id, each)
            if first is not each:
                _check_same(first, each)
                again += 1
                if first.candidate.verified or not candidate.verified:
                    continue
                chosen[each.sample_id] = each
            rid = str(candidate.sample.rid)
            if parts.setdefault(rid, each).sample_id != each.sample_id:
                raise PreflightError(
                    f"{source.paths.shown} and {parts[rid].source.paths.shown} both have a request {rid}, for "
                    "different samples: they are parts of one dataset that was changed since"
                )
    if not chosen:
        raise UsageError("the datasets hold no sample")
    if again:
        say(f"twice      {again} samples are in several datasets for the same prompt, and are taken once")
    say(f"chosen     {len(chosen)} samples of {len(sources)} datasets")
    if not dry_run:
        _tell(write_dataset(out, info, list(chosen.values()), copy=copy), out, say)
    return int(incomplete)


def _check_same(first: Chosen, other: Chosen) -> None:
    one, two = first.candidate.sample, other.candidate.sample
    if (one.n, one.ids_xxh3, one.mask_spans) != (two.n, two.ids_xxh3, two.mask_spans):
        raise PreflightError(
            f"{first.source.paths.shown} and {other.source.paths.shown} both have a sample {one.sample_id!r}, for "
            "different prompts or masks: --prefix-ids keeps both"
        )


def _tell_broken(sources: Sequence[Source], say: Say) -> bool:
    for source in sources:
        if source.broken:
            names = _some([broken.sample_id for broken in source.broken])
            say(f"warning    {len(source.broken)} samples of {source.paths.shown} are broken and left out: {names}")
    return any(source.broken for source in sources)


def _some(names: Sequence[str]) -> str:
    more = f", … and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _name(dataset: Location) -> str:
    return (dataset.resolve() if isinstance(dataset, Path) else dataset).name


def _tell(written: Written, out: Path, say: Say) -> None:
    say(f"dataset    {out}: {written.samples} samples, {written.tokens:,} tokens, {written.verified} verified")
    say(f"files      {written.linked} linked, {written.copied} copied, {show_bytes(written.stored_bytes)}")
