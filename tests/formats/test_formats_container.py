from __future__ import annotations

import io
import json
import mmap
import subprocess
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from hs_formats import stored_zip
from hs_formats.container import ARCHIVE, DTYPES, Plain, TensorSpec, lay_out, read_header
from hs_formats.errors import FormatError
from hs_formats.names import PartName, Rid
from hs_formats.part import PART_OVERHEAD_BYTES, PartMeta, inspect_part, parse_struct, part_pieces
from part_factory import part_bytes, part_meta, tensor_bytes

NAME = PartName(Rid("0000abcd", 3, 0), 5, 12, 20, 0)

SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)


# Nested by hand: st.recursive now and then takes a list without elements for a strategy that does not recurse.
PLAIN = SCALAR | _containers(SCALAR) | _containers(_containers(SCALAR))


def _file(tensors: dict[str, torch.Tensor], meta: dict[str, Plain]) -> bytes:
    laid = [
        (TensorSpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)), [tensor_bytes(tensor)])
        for name, tensor in tensors.items()
    ]
    return b"".join(lay_out(laid, meta))


def _same(loaded: Any, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert loaded[name].shape == tensor.shape
        assert loaded[name].is_contiguous()
        assert torch.equal(loaded[name], tensor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 3, 16), (1,), (), (0,), (0, 3, 4), (5, 0), (300, 2, 64)])
def test_torch_loads_it_as_it_loads_its_own(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    states = (torch.randn(shape) * 100).to(getattr(torch, dtype))
    tensors = {"input_ids": torch.arange(7), "hidden_states": states}
    meta: dict[str, Plain] = {"rid": "x", "list": [1, 2.5, True, None], "d": {}}
    (tmp_path / "ours.pt").write_bytes(_file(tensors, meta))
    torch.save({**tensors, "meta": meta}, tmp_path / "theirs.pt")
    theirs = torch.load(tmp_path / "theirs.pt", weights_only=True)
    for mapped in (True, False):
        ours = torch.load(tmp_path / "ours.pt", weights_only=True, mmap=mapped)
        assert list(ours) == list(theirs)
        assert ours["meta"] == theirs["meta"]
        _same(ours, tensors)
        _same(theirs, tensors)
        for name, tensor in tensors.items():
            assert ours[name].stride() == theirs[name].stride()
            assert ours[name].untyped_storage().nbytes() == tensor.nbytes  # owns just its own bytes
            assert ours[name].requires_grad is False
        ours["input_ids"] += 1  # writable, privately
    _same(torch.load(io.BytesIO((tmp_path / "ours.pt").read_bytes()), weights_only=True), tensors)


def test_other_tools_take_it_for_a_sound_zip(tmp_path: Path) -> None:
    path = tmp_path / "part.pt"
    path.write_bytes(_file({"a": torch.randn(4, 5), "b": torch.arange(3)}, {"x": 1}))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            f"{ARCHIVE}/{name}" for name in ("data.pkl", "byteorder", "data/0", "data/1", "version", "hs.json")
        ]
    run = subprocess.run(["unzip", "-t", str(path)], capture_output=True, text=True, check=True)
    assert "No errors detected" in run.stdout


@given(st.dictionaries(st.text().filter(lambda key: key != "tensors"), PLAIN, max_size=5))
def test_any_plain_meta_comes_back_from_the_pickle_and_from_the_json(meta: dict[str, Plain]) -> None:
    data = _file({"a": torch.arange(2)}, meta)
    assert torch.load(io.BytesIO(data), weights_only=True)["meta"] == meta
    header, spans = read_header(io.BytesIO(data))
    assert header == meta
    assert spans["a"].spec == TensorSpec("a", "int64", (2,))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1,), b"x", object(), {1: 2}])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises((FormatError, AttributeError)):
        _file({"a": torch.arange(2)}, {"x": value})


@pytest.mark.parametrize(("names", "meta"), [(["meta"], {}), (["a", "a"], {}), (["a"], {"tensors": 1})])
def test_reserved_and_doubled_names_are_refused(names: list[str], meta: dict[str, Plain]) -> None:
    with pytest.raises(FormatError, match="doubled or reserved"):
        lay_out([(TensorSpec(name, "int64", (0,)), []) for name in names], meta)


def test_sizes_must_fit(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="needs 16 bytes, not 15"):
        lay_out([(TensorSpec("a", "int64", (2,)), [b"x" * 15])], {})
    with pytest.raises(FormatError, match="negative"):
        TensorSpec("a", "int64", (-1,))
    with pytest.raises(FormatError, match="not one of"):
        TensorSpec("a", "float64", (1,))


def test_data_is_referred_to_and_aligned() -> None:
    states = bytearray(b"z" * 4096)
    pieces = lay_out([(TensorSpec("a", "float32", (1024,)), [memoryview(states)[:96], memoryview(states)[96:]])], {})
    states[:4] = b"late"
    data = b"".join(pieces)
    _, spans = read_header(io.BytesIO(data))
    assert spans["a"].offset % 64 == 0
    assert data[spans["a"].offset :][:5] == b"latez"


@settings(deadline=None)
@given(st.data())
def test_spans_point_at_the_data(data: st.DataObject) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name in data.draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=4)):
        shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
        dtype = getattr(torch, data.draw(st.sampled_from(list(DTYPES))))
        tensors[name] = (torch.randn(shape) * 50).to(dtype)
    file = _file(tensors, {})
    _, spans = read_header(io.BytesIO(file))
    assert list(spans) == list(tensors)
    for name, span in spans.items():
        assert file[span.offset : span.offset + span.spec.nbytes] == tensor_bytes(tensors[name])
        assert span.spec.count == tensors[name].numel()


# -- more than 4 GiB: the same code with the border moved, then once with a sparse file of real size


@pytest.mark.parametrize("border", [64, 200, 500, 900, 1500, 2500])
def test_zip64_fields_beyond_a_lowered_border(monkeypatch: pytest.MonkeyPatch, border: int) -> None:
    tensors = {"a": torch.arange(20), "b": torch.randn(3, 300)}
    plain = _file(tensors, {"x": 1})
    monkeypatch.setattr(stored_zip, "_U32", border)
    wide = _Wide(border)
    monkeypatch.setattr(stored_zip, "_CENTRAL", wide.patched(stored_zip._CENTRAL))
    monkeypatch.setattr(stored_zip, "_LOCAL", wide.patched(stored_zip._LOCAL))
    monkeypatch.setattr(stored_zip, "_END", wide.patched(stored_zip._END))
    data = _file(tensors, {"x": 1})
    assert wide.used
    assert len(data) > len(plain)
    _same(torch.load(io.BytesIO(data), weights_only=True), tensors)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
    monkeypatch.undo()
    header, spans = read_header(io.BytesIO(data))
    assert header == {"x": 1}
    for name, span in spans.items():
        assert data[span.offset : span.offset + span.spec.nbytes] == tensor_bytes(tensors[name])


class _Wide:
    """Writes the real 32-bit marker wherever the code, its border lowered, writes the border."""

    def __init__(self, border: int) -> None:
        self.border = border
        self.used = False

    def patched(self, real: Any) -> Any:
        wide = self

        class Patched:
            size = real.size
            unpack = staticmethod(real.unpack)
            unpack_from = staticmethod(real.unpack_from)

            @staticmethod
            def pack(*values: int) -> bytes:
                wide.used |= wide.border in values
                return bytes(real.pack(*(0xFFFFFFFF if value == wide.border else value for value in values)))

        return Patched


def test_a_part_beyond_4_gib_written_sparsely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GiB of zeros as holes; the checksums are left to torch.load and the strict reader, which do not read data."""
    count = (1 << 32) // 8 + 1000
    monkeypatch.setattr(zlib, "crc32", lambda data, value=0: 0)
    zeros = memoryview(mmap.mmap(-1, count * 8))  # never touched, so never allocated
    pieces = lay_out(
        [(TensorSpec("big", "int64", (count,)), [zeros]), (TensorSpec("b", "int64", (2,)), [b"\1" * 16])], {}
    )
    path = tmp_path / "big.pt"
    with path.open("wb") as file:
        for piece in pieces:
            if len(piece) > 1 << 30:
                file.seek(len(piece), 1)
            else:
                file.write(piece)
    assert path.stat().st_blocks * 512 < 1 << 20
    with path.open("rb") as file:
        _, spans = read_header(file)
        assert spans["b"].offset > 1 << 32
        file.seek(spans["b"].offset)
        assert file.read(16) == b"\1" * 16
    loaded = torch.load(path, weights_only=True, mmap=True)
    assert loaded["big"].shape == (count,)
    assert loaded["big"][-1].item() == 0
    assert loaded["b"].tolist() == [0x0101010101010101] * 2
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo(f"{ARCHIVE}/data/0").file_size == count * 8


# -- the part's own meaning


def _part(**changes: Any) -> bytes:
    return part_bytes(NAME, range(7), torch.ones(7, 3, 4), **changes)


def test_inspect_part(tmp_path: Path) -> None:
    data = _part()
    info = inspect_part(io.BytesIO(data), NAME)
    assert info.meta == part_meta(NAME)
    assert info.meta.name == NAME
    assert (info.meta.slots, info.hidden_states.spec.shape, info.input_ids.spec.shape) == (3, (7, 3, 4), (7,))
    assert PartMeta.from_plain({**info.meta.to_plain(), "later": 1}) == info.meta


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rid": "hs-0000abcd-00000004-00"}, "the file says it is hs-0000abcd-00000004"),
        ({"n": 21}, "of0000021"),
        ({"tp_rank": 1}, "r01"),
        ({"rid": "x"}, "not a request id"),
        ({"version": 2}, "version 2"),
        ({"format": "other"}, "other"),
        ({"boundaries": [2, 1]}, "do not ascend"),
        ({"boundaries": [0, 1]}, "do not ascend"),
        ({"boundaries": [1, 1]}, "do not ascend"),
        ({"writers": "some"}, "writers"),
        ({"expected_ranks": ["0"]}, "expected_ranks"),
        ({"model": 3}, "'model' is 3"),
        ({"nonce": None}, "nonce"),
        ({"model": ["y" * 900]}, "…"),
    ],
)
def test_a_part_that_contradicts_its_name_or_itself(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        inspect_part(io.BytesIO(_part(**changes)), NAME)


def test_shapes_must_agree_with_the_meta() -> None:
    patched = _with_json(_part(), lambda header: header | {"hidden_size": 5})
    with pytest.raises(FormatError, match=r"hidden_states is float32 \[7, 3, 4\], the meta says float32 \[7, 3, 5\]"):
        inspect_part(io.BytesIO(patched), NAME)
    patched = _with_json(_part(), lambda header: header | {"dtype": "bfloat16"})
    with pytest.raises(FormatError, match="the meta says bfloat16"):
        inspect_part(io.BytesIO(patched), NAME)


def _with_json(data: bytes, change: Any) -> bytes:
    """The same archive with another hs.json."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        old = archive.read(f"{ARCHIVE}/hs.json")
        layout = stored_zip.ZipLayout()
        for name in archive.namelist():
            content = archive.read(name)
            layout.add(name, [json.dumps(change(json.loads(old))).encode() if content == old else content])
        layout.close()
    return b"".join(layout.pieces)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda header: [], "describes no tensors"),
        (lambda header: {}, "describes no tensors"),
        (lambda header: {"tensors": {}}, "2 tensor entries are not described"),
        (lambda header: {"tensors": {"x": 1}}, "described as 1"),
        (lambda header: {"tensors": {"x": {"dtype": "int64", "shape": [True], "offset": 0}}}, "described as"),
        (lambda header: {"tensors": {"x": {"dtype": "int64", "shape": [1] * 99, "offset": 0}}}, "described as"),
        (lambda header: {"tensors": {"x": {"dtype": "int64", "shape": [1 << 90], "offset": 0}}}, "described as"),
        (lambda header: {"tensors": {"x": {"dtype": "int64", "shape": [-1], "offset": 0}}}, "described as"),
        (lambda header: {"tensors": {"x": {"dtype": "int64", "shape": [1], "offset": 0}}}, "is not where"),
        (lambda header: {"tensors": {"x" * 9999: {"dtype": "y" * 9999, "shape": [1], "offset": 0}}}, "…"),
    ],
)
def test_hostile_headers(change: Any, says: str) -> None:
    with pytest.raises(FormatError, match=says) as caught:
        read_header(io.BytesIO(_with_json(_part(), change)))
    assert len(str(caught.value)) < 500


def test_the_overhead_that_admission_reckons_with_holds() -> None:
    meta = part_meta(
        NAME,
        model="/" + "m" * 200,
        config_hash="a" * 64,
        expected_ranks=list(range(16)),
        boundaries=range(1, 62),
        hidden_size=1,
    )
    pieces = part_pieces(meta, input_ids=bytes(56), hidden_states=[bytes(7 * 62 * 4)])
    size = sum(map(len, pieces))
    assert (size + 4095) // 4096 * 4096 <= PART_OVERHEAD_BYTES + 56 + 7 * 62 * 4
    with pytest.raises(FormatError, match="shorter path"):
        part_pieces(part_meta(NAME, model="m" * 2000), input_ids=bytes(56), hidden_states=[bytes(7 * 3 * 4 * 4)])


@given(st.dictionaries(st.sampled_from(list(part_meta(NAME).to_plain())), PLAIN), st.booleans())
def test_any_meta_is_one_or_a_format_error(changes: dict[str, Any], whole: bool) -> None:
    try:
        meta = PartMeta.from_plain({**(part_meta(NAME).to_plain() if whole else {}), **changes})
        assert parse_struct(PartMeta, meta.to_plain()) == meta
        inspect_part(io.BytesIO(_with_json(_part(), lambda header: header | changes)), NAME)
    except FormatError:
        pass
