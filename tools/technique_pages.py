"""Writes docs/techniques: one page a stage, from its docstring, arguments and byte formula.

python tools/technique_pages.py          write the pages
python tools/technique_pages.py --check  exit 1 when a page is stale
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from pages import write_or_check

from kvik.plan import kv_bytes
from kvik.recipe import Codec, Recipe, Slot, Stage
from kvik.recipe.stage import load_stages
from kvik.spec.model import LayerSpec, ModelSpec, Rope

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "techniques"
SECTIONS = ("Use when", "Cost", "Limits", "Source")
CONTEXT = 4096


def shape(dim: int, kv_heads: int) -> ModelSpec:
    """One layer of SmolLM2-135M's (3 KV heads of 64) or Llama-3-8B's shape (8 of 128)."""
    layer = LayerSpec("full", 3 * kv_heads, kv_heads, dim, dim, rope=Rope(dim, 1e4))
    return ModelSpec("shape", "llama", (layer,), 8192, 1, 1, 1)


def sections(cls: type[Stage]) -> tuple[str, dict[str, str]]:
    """The docstring's text before its sections, and the sections."""
    text = inspect.cleandoc(cls.__doc__ or "").replace("``", "`")
    parts = re.split(rf"^({'|'.join(SECTIONS)}): ", text, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return parts[0].strip(), {name: body.strip() for name, body in found.items()}


def arguments(cls: type[Stage]) -> list[str]:
    """A table of what can be written after the colon."""
    fixed = {key for names in cls.names.values() for key in names}
    fields = [f for f in dataclasses.fields(cls) if f.name not in fixed]
    if not fields:
        return ["No arguments."]
    rows = ["| argument | default | values |", "|---|---|---|"]
    for f in fields:
        rules = f.metadata
        values = ", ".join(map(str, rules.get("choices", ()))) or str(f.type)
        if "minimum" in rules:
            values += f" from {rules['minimum']}"
        if "maximum" in rules:
            values += f" to {rules['maximum']}"
        default = "required" if f.default is dataclasses.MISSING else f"`{f.default}`"
        name = f"`{f.name}`" + (" (its name may be left out)" if rules.get("positional") else "")
        rows.append(f"| {name} | {default} | {values} |")
    return rows


def sizes(cls: type[Stage]) -> list[str]:
    """Bytes of each example at 4,096 tokens, against fp16."""
    rows = [
        f"Bytes of one layer at {CONTEXT:,} tokens, tables included, and share of fp16:",
        "",
        "| recipe | 3 KV heads of 64 | 8 KV heads of 128 |",
        "|---|---|---|",
    ]
    for text in cls.examples:
        cells = []
        for spec in (shape(64, 3), shape(128, 8)):
            ours, half = (
                kv_bytes(Recipe.parse(r).resolve(spec), CONTEXT).total for r in (text, "fp16")
            )
            cells.append(f"{ours:,} ({ours / half:.3f})")
        rows.append(f"| `{text}` | {cells[0]} | {cells[1]} |")
    return rows


def page(cls: type[Stage]) -> str:
    """The page of one stage."""
    what, named = sections(cls)
    kind = "codec" if issubclass(cls, Codec) else Slot(cls.slot).name.lower()
    lines = [f"# {', '.join(f'`{n}`' for n in cls.names)}", "", f"Kind: {kind}.", "", what, ""]
    for name, body in named.items():
        lines += [f"**{name}:** {body}", ""]
    lines += ["## Arguments", "", *arguments(cls), ""]
    if cls.examples:
        lines += ["## Bytes", "", *sizes(cls), ""]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Every page and the index."""
    classes = [c for c in dict.fromkeys(load_stages().values()) if c.__module__.startswith("kvik.")]
    classes.sort(key=lambda c: (c.slot, c.__module__))
    found = {}
    index = ["# Techniques", "", "| recipe word | kind | what it does |", "|---|---|---|"]
    for cls in classes:
        name = cls.__module__.rpartition(".")[2]
        found[FOLDER / f"{name}.md"] = page(cls)
        first = " ".join(sections(cls)[0].split("\n\n")[0].split())
        words = ", ".join(f"`{n}`" for n in cls.names)
        index.append(f"| [{words}]({name}.md) | {Slot(cls.slot).name.lower()} | {first} |")
    found[FOLDER / "README.md"] = "\n".join([*index, ""])
    return found


if __name__ == "__main__":
    raise SystemExit(write_or_check("technique_pages.py", pages(), FOLDER))
