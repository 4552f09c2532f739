"""What an export tells before it begins: what is in it, what is not, and what is done to the states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hs_client.export.casting import Cast
from hs_client.export.layout import Job
from hs_client.export.samples import PlannedSample
from hs_client.export.serving import DraftIds
from hs_client.export.settings import Serving

__all__ = ["growth_lines", "plan_lines"]


def growth_lines(out: Path, begun: Sequence[PlannedSample], now: Sequence[PlannedSample]) -> Iterator[str]:
    """An export is gone on with: what the dataset has got since it was begun is not in it."""
    known = {sample.sample_id for sample in begun}
    newer = sum(sample.sample_id not in known for sample in now)
    yield f"resume     {out}, begun with {len(begun):,} samples"
    if newer:
        yield f"           NOT IN IT: {newer:,} samples that could be exported only later; use another --out"


def plan_lines(
    job: Job,
    layout: Mapping[str, Any],
    left_out: Mapping[str, int],
    cast: Cast,
    serving: Serving | None,
    ids: DraftIds | None,
) -> Iterator[str]:
    """The dataset, the samples, what was left out and why, the format, the cast, the serving engine's layer ids."""
    info, settings = job.info, job.settings
    tokens = sum(sample.n for sample in job.samples)
    trained = sum(sample.trained for sample in job.samples)
    yield f"dataset    {settings.dataset}: boundaries {info.boundaries} of {info.num_layers} layers, {info.dtype}"
    yield f"samples    {len(job.samples):,}, {tokens:,} tokens, of which {trained:,} to train on"
    if left_out.get("broken"):
        yield f"           LEFT OUT: {left_out['broken']:,} without a whole record; see hs-client verify"
    if left_out.get("unverified"):
        yield f"           LEFT OUT: {left_out['unverified']:,} that are not verified; run hs-client verify first"
    if left_out.get("untrained"):
        yield f"           left out: {left_out['untrained']:,} without a token to train on"
    if settings.unverified:
        yield "           NOT VERIFIED: --unverified takes what nobody has checked"
    yield f"format     {settings.format}, {settings.algorithm}, last state {layout['last_state']}"
    if "last_state_from" in layout:
        norm = layout["norm"]
        yield f"norm       undone: divided by {norm['gain']} of {norm['tensor']} in {norm['model']}; checked row by row"
    if "layer_ids" in layout:
        yield f"layer ids  {layout['layer_ids']} is what {settings.format} calls the boundaries {info.boundaries}"
    yield f"cast       {cast.note}" + (", then to float8 with a scale a token" if settings.fp8 else "")
    if ids is not None:
        shown = f"eagle_aux_hidden_state_layer_ids {ids.ids}"
        if ids.ids is None:
            shown = "NO eagle_aux_hidden_state_layer_ids names these boundaries"
        yield f"serving    {serving}: {shown}, because {ids.why}"
    elif settings.algorithm == "eagle3":
        yield "serving    layer ids not written: name engine and version with --serve, and the model with --model"
