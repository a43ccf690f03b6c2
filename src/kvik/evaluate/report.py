"""``report.html``: the facts of ``compare.json`` on one page that needs nothing else.

No script, no request to anywhere; every text that comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kvik.evaluate.charts import CHANCE, Charts, draw
from kvik.evaluate.figures import COLUMNS
from kvik.evaluate.page import gallery, page, paragraph, terms
from kvik.machine import human_bytes


def render(comparison: Mapping[str, Any], charts: Charts | None = None) -> str:
    """The page of a comparison as HTML text; ``charts`` are its pictures, if already drawn."""
    charts = draw(comparison) if charts is None else charts
    sections = [("Figures", f'<div class="card scroll">{_table(comparison["results"])}</div>')]
    if "baseline" in comparison:
        sections.append(("Against the baseline", _baseline(comparison["baseline"])))
    for head, found, words in (
        ("Bytes, quality and speed", charts.figures, ""),
        ("Needles", charts.needles, _needle_words(comparison["needle"])),
        ("Tokens that are kept", charts.kept, "Recipes that keep every token are not shown."),
    ):
        if found:
            shown = gallery([(chart.picture, chart.caption) for chart in found])
            sections.append((head, (paragraph(words) if words else "") + shown))
    sections += [
        ("What the figures mean", terms({column.head: column.meaning for column in COLUMNS})),
        ("How they were made", terms(_origin(comparison))),
    ]
    lead = (
        f"{comparison['context']:,} tokens of context; quality over "
        f"{comparison['quality']['scored']:,} tokens after it, against the full fp32 cache. Each "
        "recipe ran in a process of its own."
    )
    return page(f"KV-cache recipes on {comparison['model']}", paragraph(lead), sections)


def _table(results: list[dict[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(c.head)}</th>' for c in COLUMNS)
    rows = [f'<thead><tr><th scope="col">recipe</th>{head}</tr></thead><tbody>']
    for result in results:
        if "error" in result:
            cells = f'<td class="error" colspan="{len(COLUMNS)}">{escape(result["error"])}</td>'
        else:
            cells = "".join(
                f"<td>{escape(c.write(result))}{_small(c.changed(result))}</td>" for c in COLUMNS
            )
        name = f'<th scope="row"><code>{escape(result["recipe"])}</code></th>'
        rows.append(f"<tr>{name}{cells}</tr>")
    return f"<table>{''.join(rows)}</tbody></table>"


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _baseline(baseline: Mapping[str, Any]) -> str:
    words = (
        f"The small figures in the table are what differs from {baseline['file']}: new less old, "
        "speeds and memory in percent of the old; = where nothing does."
    )
    parts = [paragraph(words)]
    parts += [paragraph(f"Mind: {warning}.", "warning") for warning in baseline["warnings"]]
    if baseline["left_out"]:
        left = ", ".join(baseline["left_out"])
        parts.append(paragraph(f"Measured there and not here: {left}."))
    return "".join(parts) + terms(_machine(baseline["env"]))


def _needle_words(needle: Mapping[str, Any]) -> str:
    counted, asked = sum(needle["counted"]), len(needle["counted"])
    return (
        f"A five-digit number is hidden at a depth of a text of some length and asked for at its "
        f"end; {asked} such prompts, one for each cell. ✓: greedy decoding gives it. The figure is "
        f"ln of the answer's probability; a guess has {CHANCE}. Only what the full cache finds "
        f"counts: {counted} of {asked}."
    )


def _origin(comparison: Mapping[str, Any]) -> dict[str, str]:
    quality, speed = comparison["quality"], comparison["speed"]
    weights, needle = comparison["weights_bytes"], comparison["needle"]
    facts = {
        "weights": "" if weights is None else f"{human_bytes(weights)} ({weights:,} bytes)",
        "weights SHA-256": comparison["model_sha256"],
        "text": comparison["text"]["name"],
        "text SHA-256": comparison["text"]["sha256"],
        "scored tokens": f"{quality['scored']:,} at {quality['offsets']} places of the text",
        "decode steps": f"at most {speed['steps']} timed at the whole context",
        "needle prompts": f"{len(needle['cells'])}, in {needle['noise']}"
        if needle["cells"]
        else "",
        "needle template": needle["prompt"] if needle["cells"] else "",
    }
    return {k: v for k, v in facts.items() if v} | _machine(comparison["env"])


def _machine(env: Mapping[str, Any]) -> dict[str, str]:
    """Machine, versions and command; of a file that somebody else made, whatever it has."""
    sets, memory = env.get("instruction_sets"), env.get("memory_bytes")
    cores = f"; cores: {env.get('cores')}, threads: {env.get('threads')}"
    commit = f", commit {env['commit']}" if env.get("commit") else ""
    facts = {
        "command": env.get("command"),
        "kvik": env.get("kvik") and f"{env['kvik']}{commit}",
        "processor": env.get("cpu") and f"{env['cpu']}{cores}",
        "instruction sets": " ".join(map(str, sets)) if isinstance(sets, list) else None,
        "memory": human_bytes(memory) if isinstance(memory, int | float) else None,
        "system": env.get("system"),
        "Python": env.get("python"),
        "torch": env.get("torch"),
    }
    return {name: str(value) for name, value in facts.items() if value}
