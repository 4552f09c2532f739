"""Reads an HTML page strictly: every element is closed, and nothing in it asks for another file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

__all__ = ["HtmlPage", "read_page"]

_VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})
_FOREIGN = frozenset({"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"})
_LOADING = frozenset({"src", "href", "xlink:href", "srcset", "action", "data", "background", "poster"})


@dataclass
class HtmlPage:
    """What a page holds. `tags` counts elements, `words` is its text, `headings` that of its h1 and h2."""

    tags: dict[str, int] = field(default_factory=dict)
    words: str = ""
    headings: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = HtmlPage()
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.tags[tag] = self.page.tags.get(tag, 0) + 1
        if tag in _FOREIGN:
            self.page.wrong.append(f"<{tag}>")
        for name, value in attrs:
            if name in _LOADING or name.startswith("on") or re.search(r"url\(|javascript:", value or ""):
                self.page.wrong.append(f"{name}={value}")
        if tag not in _VOID:
            self._open.append(tag)
        if tag in ("h1", "h2"):
            self.page.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.page.wrong.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            if re.search(r"url\(|@import|expression", data):
                self.page.wrong.append("the style asks for a file")
            return
        self.page.words += data
        if self._open and self._open[-1] in ("h1", "h2"):
            self.page.headings[-1] += data

    def finish(self) -> HtmlPage:
        self.close()
        self.page.wrong += [f"<{tag}> is not closed" for tag in self._open]
        return self.page


def read_page(text: str) -> HtmlPage:
    """Parse `text`."""
    reader = _Reader()
    reader.feed(text)
    return reader.finish()
