"""The patch as text: four blocks of lines put into deepseek_v2.py, and taken out again. Pure functions.

Each block stands behind one statement that must exist exactly once, in the function where it is expected. The blocks
do nothing but call `hs_server.capture.source`, and not even that unless ``SGLANG_HS_DUMP_DIR`` is set. The first block
names the hash of the file without them, so that taking them out can be proved to give the file back byte by byte.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from dataclasses import dataclass

__all__ = ["ANCHORS", "PATCH_VERSION", "Anchor", "PatchError", "Patched", "apply_patch", "inspect_patch", "take_out"]

PATCH_VERSION = 1
"""Goes up whenever a block changes."""

_OPEN = "# >>> hs-extract"
_CLOSE = "# <<< hs-extract"
_HEADER = re.compile(r"# >>> hs-extract (\d+), sha256 without these blocks ([0-9a-f]{64}); .*", re.ASCII)


class PatchError(ValueError):
    """Raised when a text cannot be patched or given back; the text says why."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Where a block goes: right behind `statement`, which must be there once.

    Attributes:
        where: the class and the function that hold it; empty: the module itself.
        statement: as `ast` understands it, so that spaces do not count.
        guard: the condition of the ``if`` that must directly hold it; empty: none may.
        needs: arguments of the function that the block uses.
        block: its lines, without indentation.
    """

    where: tuple[str, ...]
    statement: str
    block: tuple[str, ...]
    guard: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Patched:
    """What the first block of a patched text says, and whether the text is what the patch makes.

    `damage` is empty, or says how the text differs from what `apply_patch` gives.
    """

    version: int
    sha256_without: str
    damage: str


ANCHORS: tuple[Anchor, ...] = (
    Anchor(
        (),
        "logger = logging.getLogger(__name__)",
        (
            "import os as _hs_os",
            "",
            '_HS_DUMP_DIR = _hs_os.environ.get("SGLANG_HS_DUMP_DIR")',
            "_hs_capture = None",
            "if _HS_DUMP_DIR:",
            "    from hs_server.capture.source import attach as _hs_attach",
            "",
            '    _hs_capture = _hs_attach(__file__, {version}, "{sha256}")',
        ),
    ),
    Anchor(
        ("DeepseekV2Model", "__init__"),
        "self.layers_to_capture = []",
        ("if _hs_capture is not None:", "    _hs_capture.set_up(self)"),
        needs=("self",),
    ),
    Anchor(
        ("DeepseekV2ForCausalLM", "__init__"),
        "self.capture_aux_hidden_states = False",
        ("if _hs_capture is not None:", "    self.capture_aux_hidden_states = _hs_capture.start(self)"),
        needs=("self",),
    ),
    # In the outer forward, which no prefill graph contains, and where list and packed states look alike.
    Anchor(
        ("DeepseekV2ForCausalLM", "forward"),
        "hidden_states, aux_hidden_states = hidden_states",
        ("if _hs_capture is not None:", "    _hs_capture.observe(hidden_states, aux_hidden_states)"),
        guard="self.capture_aux_hidden_states",
        needs=("self",),
    ),
)


@functools.lru_cache(maxsize=4)
def apply_patch(text: str) -> str:
    """`text` of an unpatched deepseek_v2.py with all blocks.

    Raises:
        PatchError: it is patched already, or an anchor is not there exactly once; nothing can be done halfway.
    """
    if _OPEN in text or _CLOSE in text or "_hs_capture" in text:
        raise PatchError("there are traces of an earlier patch in it")
    if "\r" in text:
        raise PatchError("its lines do not end as SGLang's do (there are carriage returns)")
    tree = _parse(text)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    lines = text.split("\n")
    places = sorted(((_find(tree, anchor), anchor) for anchor in ANCHORS), key=lambda place: -place[0].end_line)
    for place, anchor in places:
        opening = _OPEN
        if not anchor.where:
            opening = f"{_OPEN} {PATCH_VERSION}, sha256 without these blocks {sha256}; hs-server patch --revert"
        block = [line.format(version=PATCH_VERSION, sha256=sha256) for line in anchor.block]
        block = [opening, *block, _CLOSE]
        lines[place.end_line : place.end_line] = [" " * place.column + line if line else "" for line in block]
    patched = "\n".join(lines)
    _parse(patched)
    if take_out(patched) != text:
        raise PatchError("taking the patch out again would not give the file back")
    return patched


def take_out(text: str) -> str:
    """`text` without the blocks; the same text where there are none.

    Raises:
        PatchError: a block has no end or no beginning, or the result is not what the first block says it was.
    """
    kept: list[str] = []
    inside = False
    sha256 = ""
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        opens, closes = bare.startswith(_OPEN), bare == _CLOSE
        if (opens and inside) or (closes and not inside):
            raise PatchError(f"line {number}: the blocks of the patch are not whole")
        inside = (inside or opens) and not closes
        if (header := _HEADER.fullmatch(bare)) is not None:
            sha256 = header[2]
        if not inside and not closes:
            kept.append(line)
    if inside:
        raise PatchError("the last block of the patch has no end")
    result = "\n".join(kept)
    if result != text and hashlib.sha256(result.encode()).hexdigest() != sha256:
        raise PatchError("it was edited by hand after it was patched: without the patch it is not what it was before")
    return result


def inspect_patch(text: str) -> Patched | None:
    """What patch `text` carries; None where there is no trace of one.

    Raises:
        PatchError: there are traces of a patch, but not its first block.
    """
    headers = [found for line in text.split("\n") if (found := _HEADER.fullmatch(line.strip())) is not None]
    if not headers:
        if _OPEN in text or "_hs_capture" in text:
            raise PatchError("there are traces of a patch in it, but not its first block")
        return None
    version, sha256 = int(headers[0][1]), headers[0][2]
    try:
        before = take_out(text)
        if version != PATCH_VERSION:
            damage = ""  # the blocks of another release cannot be compared, what they surround was
        else:
            damage = "" if apply_patch(before) == text else "a block of the patch was edited by hand"
    except PatchError as error:
        damage = str(error)
    return Patched(version, sha256, damage)


@dataclass(frozen=True, slots=True)
class _Place:
    """The line (from 1) that a statement ends on, and its indentation."""

    end_line: int
    column: int


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise PatchError(f"it is not Python that this interpreter reads: {error}") from None


def _find(tree: ast.Module, anchor: Anchor) -> _Place:
    scope: ast.Module | ast.ClassDef | ast.FunctionDef = tree
    for name in anchor.where:
        inner = [node for node in scope.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
        if len(inner) != 1:
            raise PatchError(f"{'.'.join(anchor.where)} is there {len(inner)} times, not once")
        scope = inner[0]
    if isinstance(scope, ast.FunctionDef):
        taken = {argument.arg for argument in scope.args.args}
        if missing := [name for name in anchor.needs if name not in taken]:
            raise PatchError(f"{'.'.join(anchor.where)} has no argument {', '.join(missing)}")
    wanted = ast.dump(ast.parse(anchor.statement).body[0])
    # Everywhere in the file: an anchor that is there twice is not understood, even if one lies elsewhere.
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and ast.dump(node) == wanted]
    if len(found) != 1:
        raise PatchError(f"`{anchor.statement}` is there {len(found)} times, not once")
    body = scope.body
    if anchor.guard:
        guards = [
            node for node in ast.walk(scope) if isinstance(node, ast.If) and ast.unparse(node.test) == anchor.guard
        ]
        body = guards[0].body if len(guards) == 1 else []
    if not any(node is found[0] for node in body):
        place = ".".join(anchor.where) or "the module"
        under = f", under `if {anchor.guard}`" if anchor.guard else ""
        raise PatchError(f"`{anchor.statement}` is not directly in {place}{under}")
    node = found[0]
    assert node.end_lineno is not None  # noqa: S101  # ast.parse sets it
    return _Place(node.end_lineno, node.col_offset)
