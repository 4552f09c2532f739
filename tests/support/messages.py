"""The texts that the commands can print, read out of their source: what is filled in at run time becomes `…`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["GAP", "fits", "raised", "texts"]

GAP = "…"
ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("client/hs_client", "formats/hs_formats", "mover/hs_mover", "server_launch/hs_server")
SCRIPT = "examples/slurm/capture.sbatch"

_PERCENT = re.compile(r"%[-+.0-9]*[sdrf]")
_BRACES = re.compile(r"\{[^{}]*\}")
_GAPS = re.compile(r"…(?:…)+")
_LOGS = {"warning", "error", "exception"}
# In the shell script: what ends it or is why it ended, and what it says besides.
_SAID = re.compile(r"""\b(?P<how>die [^ ]+|broken=|say) *(?P<quote>["'])(?P<text>.*?)(?P=quote)""")
_EXPANSION = re.compile(r"\$\(\(.*?\)\)|\$\(.*?\)|\$\{.*?\}|\$[A-Za-z0-9_*@]+")


def _plain(node: ast.expr | None) -> str | None:
    """The text of a literal, an f-string, or of several joined; None for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(str(v.value) if isinstance(v, ast.Constant) else GAP for v in values)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
            head = _plain(left)
            return None if head is None else head + (_plain(right) or GAP if isinstance(node.op, ast.Add) else "")
        case ast.Subscript(value=value):
            return _plain(value)
        case _:
            return None


def _tidy(text: str) -> str:
    return _GAPS.sub(GAP, " ".join(_PERCENT.sub(GAP, text).split()))


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def _script() -> Iterator[tuple[str, str]]:
    """How the shell script says something, and what."""
    for match in _SAID.finditer((ROOT / SCRIPT).read_text()):
        if text := _tidy(_EXPANSION.sub(GAP, match["text"])):
            yield match["how"], text


@functools.cache
def texts() -> frozenset[str]:
    """Every literal text of the source, docstrings of error classes included."""
    found: set[str] = set()
    for _, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.add(_tidy(_BRACES.sub(GAP, ast.get_docstring(node) or "")))
            elif isinstance(node, ast.expr) and (text := _plain(node)):
                found.add(_tidy(text))
                found.add(_tidy(_BRACES.sub(GAP, text)))
    found.update(text for _, text in _script())
    return frozenset(found - {""})


def raised(errors: frozenset[str]) -> dict[str, str]:
    """Texts that users meet → where: raised as one of `errors`, logged as a warning or worse, templates of classes."""
    found: dict[str, str] = {}
    for where, tree in _trees():
        for node in ast.walk(tree):
            text: str | None = None
            if not isinstance(node, ast.Call | ast.ClassDef):
                continue
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                is_log = isinstance(node.func, ast.Attribute) and name in _LOGS
                if (name in errors or is_log) and node.args:
                    text = _plain(node.args[0])
            elif any(getattr(base, "id", "") in errors for base in node.bases):
                text = _BRACES.sub(GAP, ast.get_docstring(node) or "")
            if text and _tidy(text).strip(f"{GAP} :"):
                found[_tidy(text)] = f"{where}:{node.lineno}"
    for how, said in _script():
        if how != "say" and said.strip(f"{GAP} :"):
            found[said] = SCRIPT
    return found


def fits(message: str, text: str) -> bool:
    """Whether `message`, in which `…` stands for anything, is (part of) the source's `text`."""
    at = 0
    for piece in " ".join(message.split()).split(GAP):
        at = text.find(piece, at) + len(piece)
        if at < len(piece):
            return False
    return True
