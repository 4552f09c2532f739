"""Pieces of the page's HTML. Whatever comes from a dataset passes through `escape` here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from hs_client.report.style import STYLE

__all__ = ["figure", "note", "page", "section", "table", "tiles"]

# Nothing may be fetched, whatever a dataset's texts say.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, lead: str, body: Iterable[str]) -> str:
    """The whole document; `lead` is a line under the title."""
    inner = "\n".join(body)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>
<p class="soft">{escape(lead)}</p></header>
<main>
{inner}
</main>
</body>
</html>
"""


def section(title: str, content: Iterable[str], *, about: str = "") -> str:
    """A part of the page under a heading."""
    head = f'<p class="soft">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>\n{head}\n" + "\n".join(content) + "\n</section>"


def figure(title: str, chart: str, *, about: str = "", keys: Sequence[tuple[str, str]] = ()) -> str:
    """A chart under its title; `keys` are the colours of its lines by class, and what they mean."""
    shown = "".join(f'<span class="key {tone}"><i></i>{escape(label)}</span>' for tone, label in keys)
    words = f" {escape(about)}" if about else ""
    shown = f"<div>{shown}</div>" if shown else ""
    return f"<figure><figcaption><b>{escape(title)}</b>{words}{shown}</figcaption>\n{chart}</figure>"


def tiles(facts: Iterable[tuple[str, str]]) -> str:
    """Numbers in large letters, with what they are below."""
    inner = "".join(
        f'<div class="tile"><b>{escape(number)}</b><span>{escape(what)}</span></div>' for number, what in facts
    )
    return f'<div class="tiles">{inner}</div>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table; columns in `numbers` are aligned at the right. Without `heads` the first column holds names."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if at in numbers else ''}>{escape(text)}</{tag}>" for at, text in enumerate(row)
        )

    if heads:
        head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>"
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    else:
        head = ""
        body = "".join(f'<tr><th scope="row">{escape(row[0])}</th>{cells(row[1:], "td")}</tr>' for row in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def note(text: str, *, bad: bool = False) -> str:
    """A line of text."""
    return f'<p class="{"bad" if bad else "soft"}">{escape(text)}</p>'
