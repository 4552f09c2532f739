"""The independent checker: every prompt in the dataset once, whole, under its own name, with the right states?

It knows the prompts file, a model that transformers can run, and docs/formats; of the project's code it uses nothing.
It walks the stored files itself, and of the ledger it reads one thing only: which request id won (the `done` lines),
since that is stated nowhere else. What it says: `lost` rows have no complete record, `doubled` ones several that won;
`partial` records won although their parts do not tile the prompt; `swapped` ones hold another row's ids or states;
`wrong` ones hold other values than transformers computes; `damaged` files cannot be read or do not belong there;
`unexpected` samples are done and no row. Records that did not win are `orphans`, which kills and retries leave behind.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import zstandard

from unhsz import unhsz

__all__ = ["Prompt", "Reference", "Report", "check_dataset", "read_prompts"]

_STORED = re.compile(
    r"(?P<rid>hs-(?P<run>[0-9a-f]{8})-(?P<row>[0-9]{8})-[0-9]{2})"
    r"\.t(?P<start>[0-9]{7})-(?P<stop>[0-9]{7})of(?P<n>[0-9]{7})\.r(?P<rank>[0-9]{2})(?P<suffix>\.pt(\.[a-z]+)?)"
)
_ROWS_PER_FOLDER = 500


class _Damaged(Exception):
    pass


@dataclass(frozen=True)
class Prompt:
    """A row that must be in the dataset."""

    where: str
    sample_id: str
    ids: tuple[int, ...]


class Reference:
    """What transformers computes: [n, k+1, H] in float32 for the token ids of one prompt.

    Args:
        model: folder of a model and its tokenizer.
        boundaries: those of the dataset, ascending.
        dtype: in which the model is run.
        threads: for tiny models a second one only waits, 25 times as long on a busy machine.
    """

    def __init__(self, model: Path, boundaries: Sequence[int], *, dtype: Any = torch.float32, threads: int = 1) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.boundaries = list(boundaries)
        self._threads = threads
        self.tokenizer = AutoTokenizer.from_pretrained(str(model))
        model_with_head = AutoModelForCausalLM.from_pretrained(str(model), dtype=dtype).eval()
        self._inner, self._head = model_with_head.model, model_with_head.lm_head

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """What follows each token: [n, vocabulary], from the last slot of `states`."""
        with torch.inference_mode():
            return self._head(states[:, -1]).float().clone()

    def states(self, ids: Sequence[int]) -> torch.Tensor:
        """Slots 0..k-1 are the residual stream at the boundaries, slot k the state after the final norm."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            out = self._inner(torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False)
        torch.set_num_threads(threads)
        # The last of hidden_states is past the norm already; boundaries are below it, so they are the bare stream.
        assert max(self.boundaries) < len(out.hidden_states) - 1
        slots = [out.hidden_states[b][0] for b in self.boundaries] + [out.last_hidden_state[0]]
        return torch.stack(slots, dim=1).float().clone()

    def ids(self, row: Mapping[str, Any]) -> tuple[int, ...]:
        """Token ids of an input row."""
        if row.get("input_ids") is not None:
            return tuple(row["input_ids"])
        if row.get("text") is not None:
            bos = self.tokenizer.bos_token
            special = not (bos and row["text"].startswith(bos))
            return tuple(self.tokenizer(row["text"], add_special_tokens=special)["input_ids"])
        if row.get("prompt") is not None:
            response = self.tokenizer(row["response"], add_special_tokens=False)["input_ids"]
            return (*self.ids({"text": row["prompt"]}), *response)
        turns = row.get("messages")
        if turns is None:
            role = {"human": "user", "gpt": "assistant", "system": "system"}
            turns = [{"role": role[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
        messages = [{**message, "content": _plain(message.get("content"))} for message in turns]
        options = dict(row.get("chat_template_kwargs") or {})
        if row.get("tools") is not None:
            options["tools"] = row["tools"]
        return tuple(self.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **options))


def _plain(content: Any) -> Any:
    if isinstance(content, list):
        return "".join(part if isinstance(part, str) else part["text"] for part in content)
    return content


def read_prompts(paths: Sequence[Path], reference: Reference, *, unusable: Collection[str] = ()) -> list[Prompt]:
    """The rows that must be in the dataset.

    Args:
        paths: prompts files.
        reference: tokenises.
        unusable: the rows that must be rejected, as ``file.jsonl:line``; every other line must be a good row.

    A row whose id an earlier row has, and a repetition of a row without id, is no row of its own.
    """
    prompts: dict[str, Prompt] = {}
    for path in paths:
        for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
            where = f"{path.name}:{number}"
            text = line.removesuffix(b"\r")
            if number == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")
            if not text.strip() or where in unusable:
                continue
            row = json.loads(text)
            sample_id = str(row["id"]) if row.get("id") is not None else _hash(row)
            if sample_id not in prompts:
                prompts[sample_id] = Prompt(where, sample_id, reference.ids(row))
    return list(prompts.values())


def _hash(row: Mapping[str, Any]) -> str:
    canonical = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "row-" + hashlib.sha256(canonical.encode("utf-8")).hexdigest()[:32]


@dataclass
class Report:
    """What was found; each entry is one line for a person."""

    rows: int
    good: int = 0
    largest: float = 0.0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    swapped: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)

    _FAULTS = ("lost", "doubled", "partial", "wrong", "swapped", "damaged", "unexpected")

    @property
    def faults(self) -> dict[str, list[str]]:
        """Everything that must not be, by kind."""
        return {kind: found for kind in self._FAULTS if (found := getattr(self, kind))}

    @property
    def ok(self) -> bool:
        """Each row is there once, whole and right."""
        return not self.faults and self.good == self.rows

    def assert_ok(self, *, rows: int | None = None, orphans: bool = True) -> None:
        """Fail with all that was found; `rows` is how many there must be, `orphans` whether any may lie about."""
        assert not self.faults, str(self)
        assert self.good == self.rows, str(self)
        assert rows in (None, self.rows), f"{self.rows} rows checked, {rows} expected"
        assert orphans or not self.orphans, str(self)

    def __str__(self) -> str:
        lines = [f"{self.good} of {self.rows} rows right, largest difference {self.largest:.3g}"]
        for kind, found in {**self.faults, "orphans": self.orphans}.items():
            lines += [f"  {kind}: {line}" for line in found[:20]]
            lines += [f"  {kind}: and {len(found) - 20} more"] * (len(found) > 20)
        return "\n".join(lines)


@dataclass(frozen=True)
class _Part:
    start: int
    stop: int
    n: int
    boundaries: list[int]
    ids: torch.Tensor
    states: torch.Tensor


def check_dataset(
    dataset: Path,
    prompts: Path | Sequence[Path],
    reference: Reference,
    *,
    max_abs: float,
    unusable: Collection[str] = (),
    decoders: Mapping[str, Callable[[bytes], bytes]] | None = None,
) -> Report:
    """Compare a dataset with its prompts and with transformers.

    Args:
        dataset: its folder.
        prompts: the prompts files that it was made from, all of them.
        reference: tokenises and computes states.
        max_abs: largest absolute difference of any state.
        unusable: rows that must be rejected, as ``file.jsonl:line``.
        decoders: for stored files of further suffixes, such as ``.pt.xyz``.
    """
    rows = read_prompts([prompts] if isinstance(prompts, Path) else list(prompts), reference, unusable=unusable)
    report = Report(rows=len(rows))
    parts = _stored_parts(dataset, report, {**_DECODERS, **(decoders or {})})
    winners = _winners(dataset)
    by_id = {row.sample_id: row for row in rows}
    for sample_id in winners.keys() - by_id.keys():
        report.unexpected.append(f"sample {sample_id!r} is done and no row of the prompts")
    claims: dict[str, list[str]] = defaultdict(list)
    for sample_id, rids in winners.items():
        for rid in sorted(rids):
            claims[rid].append(sample_id)
    for rid, claimed in claims.items():
        if len(claimed) > 1:
            report.swapped.append(f"{rid} is done for several rows: {sorted(claimed)}")
    report.orphans += [f"{rid}: {len(found)} parts" for rid, found in sorted(parts.items()) if rid not in claims]
    for row in rows:
        won = sorted(winners.get(row.sample_id, ()))
        if not won:
            report.lost.append(f"{row.where} {row.sample_id!r}: not done")
            continue
        if len(won) > 1:
            report.doubled.append(f"{row.where} {row.sample_id!r}: won by {', '.join(won)}")
        right = [_check_record(row, rid, parts.get(rid, []), rows, reference, max_abs, report) for rid in won]
        report.good += right == [True]
    return report


def _check_record(
    row: Prompt,
    rid: str,
    parts: list[_Part],
    rows: Sequence[Prompt],
    reference: Reference,
    max_abs: float,
    report: Report,
) -> bool:
    name = f"{row.where} {row.sample_id!r} {rid}"
    if not parts:
        report.lost.append(f"{name}: done, but no part is stored")
        return False
    parts = sorted(parts, key=lambda part: (part.start, part.stop))
    ranges = [(part.start, part.stop) for part in parts]
    n = parts[0].n
    counts = torch.zeros(max(part.stop for part in parts), dtype=torch.int64)
    for start, stop in ranges:
        counts[start:stop] += 1
    if any(part.n != n for part in parts) or len(counts) != n or not bool((counts == 1).all()):
        report.partial.append(f"{name}: rows {ranges} do not cover 0..{n} once")
        return False
    if any(part.boundaries != reference.boundaries for part in parts):
        report.wrong.append(f"{name}: boundaries {parts[0].boundaries}, not {reference.boundaries}")
        return False
    ids = tuple(torch.cat([part.ids for part in parts]).tolist())
    if ids != row.ids:
        others = [other.where for other in rows if other.ids == ids]
        kind, why = (report.swapped, f"the ids of {others[0]}") if others else (report.wrong, "other ids than its row")
        kind.append(f"{name}: holds {why}")
        return False
    states = torch.cat([part.states for part in parts])
    expected = reference.states(row.ids)
    if states.shape != expected.shape:
        report.wrong.append(f"{name}: states of shape {list(states.shape)}, not {list(expected.shape)}")
        return False
    difference = _largest(states, expected)
    if difference <= max_abs:
        report.largest = max(report.largest, difference)
        return True
    for other in rows:
        if other.ids != row.ids and len(other.ids) == n and _largest(states, reference.states(other.ids)) <= max_abs:
            report.swapped.append(f"{name}: holds the states of {other.where}")
            return False
    off = (states - expected).abs().nan_to_num(float("inf")).amax(dim=2)
    token, slot = divmod(int(off.argmax()), off.shape[1])
    report.wrong.append(f"{name}: differs by {difference:.3g}, most at token {token} slot {slot}")
    return False


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().nan_to_num(float("inf")).max())


def _winners(dataset: Path) -> dict[str, set[str]]:
    winners: dict[str, set[str]] = defaultdict(set)
    for path in (dataset / "ledger").glob("*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                item = json.loads(line)
            except ValueError:
                continue  # torn by a kill
            if isinstance(item, dict) and item.get("type") == "done":
                winners[item["sample_id"]].add(item["rid"])
    return winners


def _stored_parts(
    dataset: Path, report: Report, decoders: Mapping[str, Callable[[bytes], bytes]]
) -> dict[str, list[_Part]]:
    parts: dict[str, list[_Part]] = defaultdict(list)
    for path in _files(dataset / "data"):
        try:
            match = _STORED.fullmatch(path.name)
            if match is None:
                raise _Damaged("its name is not that of a stored part")
            folder = Path(match["run"]) / f"{int(match['row']) // _ROWS_PER_FOLDER:06d}"
            if path.parent.relative_to(dataset / "data") != folder:
                raise _Damaged(f"it does not lie in {folder}")
            parts[match["rid"]].append(_read_part(decoders[match["suffix"]](path.read_bytes()), match))
        except (_Damaged, KeyError, OSError, RuntimeError, ValueError, zipfile.BadZipFile) as error:
            report.damaged.append(f"{path.relative_to(dataset)}: {type(error).__name__}: {error}")
    return parts


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if not path.is_dir())


def _read_part(data: bytes, name: re.Match[str]) -> _Part:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise _Damaged(f"the CRC of {bad} is wrong")
        meta = json.loads(archive.read("part/hs.json"))
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    ids, states = loaded["input_ids"], loaded["hidden_states"]
    start, stop, n = (int(name[key]) for key in ("start", "stop", "n"))
    said = (meta["rid"], meta["start"], meta["stop"], meta["n"], meta["tp_rank"])
    if said != (name["rid"], start, stop, n, int(name["rank"])):
        raise _Damaged(f"its meta says {said}")
    if {key: value for key, value in meta.items() if key != "tensors"} != loaded["meta"]:
        raise _Damaged("hs.json and the pickled meta differ")
    shape = (stop - start, len(meta["boundaries"]) + 1, meta["hidden_size"])
    if (ids.dtype, tuple(ids.shape), tuple(states.shape)) != (torch.int64, shape[:1], shape):
        raise _Damaged(f"ids {list(ids.shape)} and states {list(states.shape)} for {list(shape)}")
    if meta["last_state"] != "post_norm" or str(states.dtype) != f"torch.{meta['dtype']}":
        raise _Damaged(f"last state {meta['last_state']}, dtype {meta['dtype']}")
    return _Part(start, stop, n, meta["boundaries"], ids, states.float())


def _unzstd(data: bytes) -> bytes:
    decoder = zstandard.ZstdDecompressor().decompressobj()
    try:
        content = decoder.decompress(data)
    except zstandard.ZstdError as error:
        raise _Damaged(str(error)) from error
    if not decoder.eof or decoder.unused_data or len(content) != zstandard.frame_content_size(data):
        raise _Damaged("not exactly one whole zstd frame")
    return content


_DECODERS: Mapping[str, Callable[[bytes], bytes]] = {".pt": bytes, ".pt.zst": _unzstd, ".pt.hsz": unhsz}
