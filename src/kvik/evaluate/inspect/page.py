"""``inspect.html``: every finding with its pictures on one page, and the figures of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from kvik.evaluate.inspect.table import columns
from kvik.evaluate.inspect.view import Document
from kvik.evaluate.page import gallery, page, paragraph, terms
from kvik.evaluate.pictures import Picture
from kvik.machine import human_bytes


def render(document: Document, pictures: Mapping[str, Sequence[Picture]]) -> str:
    """The page as HTML text; ``pictures`` are those of :func:`drawings.draw`."""
    sections = [
        (x["title"], _finding(x, pictures.get(x["name"], ()))) for x in document["findings"]
    ]
    told = columns(document)
    sections += [
        ("All layers", _table(document)),
        ("What the columns mean", terms({column.head: column.meaning for column in told})),
        ("How the figures were made", terms(_origin(document))),
    ]
    lead = paragraph(
        f"Measured on {document['context']:,} tokens of {document['text']}. Attention is counted "
        f"for the {document['context'] - document['counted_from']:,} queries of the second half "
        "of the text, which all see the first half (or their window); K and V over the whole text. "
        "Figures are means over heads. They say where a technique has a basis, not what quality it "
        "gives: kvik compare measures that."
    )
    return page(f"What KV-cache techniques rest on: {document['model']}", lead, sections)


def _finding(found: Mapping[str, str], pictures: Sequence[Picture]) -> str:
    """The sentences, beside the picture where there is only one."""
    figure, means = (text.replace(" %", "\u00a0%") for text in (found["figure"], found["means"]))
    said = paragraph(found["rests"]) + paragraph(figure, "") + paragraph(means, "")
    drawn = gallery([(picture, picture.description) for picture in pictures])
    if len(pictures) != 1:
        return said + drawn
    return f'<div class="beside">{drawn}<div>{said}</div></div>'


def _table(document: Document) -> str:
    told = columns(document)
    head = "".join(f'<th scope="col">{escape(c.head)}</th>' for c in told)
    rows = "".join(
        f'<tr><th scope="row">{layer["layer"]}</th>'
        + "".join(f"<td>{escape(c.write(layer))}</td>" for c in told)
        + "</tr>"
        for layer in document["layers"]
    )
    table = (
        f'<table><thead><tr><th scope="col">layer</th>{head}</tr></thead><tbody>{rows}</tbody>'
        "</table>"
    )
    return f'<div class="card scroll">{table}</div>{_reasons(document)}'


def _reasons(document: Document) -> str:
    """Why some layers have gaps, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for layer in document["layers"]:
        for reason in layer["why"]:
            by_reason.setdefault(reason, []).append(str(layer["layer"]))
    return "".join(
        paragraph(f"{'Layer' if len(which) == 1 else 'Layers'} {', '.join(which)}: {reason}.")
        for reason, which in by_reason.items()
    )


def _origin(document: Document) -> dict[str, str]:
    env = document["env"]
    facts = {
        "command": env["command"],
        "kvik": f"{env['kvik']}, commit {env['commit']}" if env.get("commit") else env["kvik"],
        "text": f"{document['context']:,} tokens of {document['text']}",
        "cache": "fp32, every token kept",
        "memory": f"about {human_bytes(document['memory_bytes'])} beside the weights",
        "processor": env["cpu"],
        "torch": env["torch"],
    }
    return {name: str(value) for name, value in facts.items() if value}
