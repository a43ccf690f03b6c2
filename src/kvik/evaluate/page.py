"""One HTML page that needs nothing else: no script, no request to anywhere, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources

from kvik.evaluate.pictures import Picture, css

# The browser is told to fetch nothing; the empty icon keeps it from asking a server for one.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
{lead}
{sections}
</body>
</html>
"""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def page(title: str, lead: str, sections: Iterable[tuple[str, str]]) -> str:
    """A whole page. ``title`` and the headings of ``sections`` are plain text.

    ``lead``, which opens the page, and the bodies of the sections are HTML.
    """
    style = resources.files("kvik.evaluate").joinpath("report.css").read_text(encoding="utf-8")
    parts = [f"<section>\n<h2>{escape(head)}</h2>\n{body}\n</section>" for head, body in sections]
    return _PAGE.format(
        policy=POLICY,
        title=escape(title),
        style=css() + style,
        lead=lead,
        sections="\n".join(parts),
    )


def paragraph(text: str, kind: str = "soft") -> str:
    """Plain text as a paragraph."""
    return f'<p class="{kind}">{escape(text)}</p>'


def gallery(pictures: Sequence[tuple[Picture, str]]) -> str:
    """Pictures with their captions (plain text), as many beside one another as there is room."""
    figures = (
        f'<figure class="card">{picture.svg()}<figcaption>{escape(caption)}</figcaption></figure>'
        for picture, caption in pictures
    )
    return f'<div class="pictures">\n{"".join(figures)}\n</div>'


def terms(pairs: Mapping[str, str]) -> str:
    """A list of terms and what they mean, both plain text."""
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items())
    return f'<dl class="card">{rows}</dl>'
