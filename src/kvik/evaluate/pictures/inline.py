"""matplotlib's SVG as an element of an HTML page: own ids, CSS colours, no reference to outside."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from kvik.evaluate.pictures.palette import variables
from kvik.evaluate.pictures.words import clean

_NAME = re.compile(r"[a-z][a-z0-9-]*")
# matplotlib sets these for the whole document, which on a page would be everybody's.
_STROKES = "stroke-linejoin: round; stroke-linecap: butt"


def inline(svg: str, name: str, title: str, description: str) -> str:
    """The ``<svg>`` element of a picture; every id in it begins with ``name``."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a picture: [a-z][a-z0-9-]*")
    root = ElementTree.fromstring(svg.encode())
    for parent in list(root.iter()):
        for child in list(parent):
            if _plain(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _plain(element.tag)
        element.tail = None
        if not (element.text or "").strip():
            element.text = None
        element.attrib = {
            k: v for key, value in element.attrib.items() for k, v in _own(name, key, value)
        }
    box = root.attrib["viewBox"]
    root.attrib = {
        "class": "picture",
        "viewBox": box,
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
        "style": _STROKES,
    }
    for at, (tag, text) in enumerate((("title", title), ("desc", description))):
        said = Element(tag, {"id": f"{name}-{tag}"})
        said.text = clean(text)
        root.insert(at, said)
    return ElementTree.tostring(root, encoding="unicode")


def _own(name: str, key: str, value: str) -> list[tuple[str, str]]:
    """An attribute as the page has it: references to ids stay within the picture."""
    key = _plain(key)
    if key == "id":
        return [(key, f"{name}-{value}")]
    if key == "href":
        return [(key, value.replace("#", f"#{name}-", 1))] if value.startswith("#") else []
    value = re.sub(r"url\(#", f"url(#{name}-", value)
    if key == "style":
        value = re.sub(r"'DejaVu Sans'", "system-ui, sans-serif", value)
    if key in ("style", "fill", "stroke"):
        value = variables(value)
        # Presentation attributes know no variables.
        return (
            [(key, value)]
            if key == "style" or "var(" not in value
            else [("style", f"{key}: {value}")]
        )
    return [(key, value)]


def _plain(tag: str) -> str:
    return tag.rpartition("}")[2]
