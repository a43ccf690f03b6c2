"""``eval.html``: an evaluation on one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from kvik.evaluate.outcome.charts import TaskCharts
from kvik.evaluate.outcome.table import HEADS, cells, notes
from kvik.evaluate.page import gallery, page, paragraph, terms
from kvik.evaluate.tasks import Task
from kvik.machine import human_bytes


def render(result: Mapping[str, Any], drawn: Sequence[TaskCharts]) -> str:
    """The page as HTML text; ``drawn`` are its pictures."""
    sections = [("Figures", f'<div class="card scroll">{_table(result)}</div>')]
    for task in drawn:
        meaning = Task.registry[task.task].meaning
        words = paragraph(f"{meaning[0].upper()}{meaning[1:]}.")
        shown = gallery([(chart.picture, chart.caption) for chart in task.charts])
        sections.append((task.task, words + shown))
    if result["failed"]:
        sections.append(("What failed", _failed(result["failed"])))
    sections += [
        ("How to read it", "".join(paragraph(note) for note in notes(result))),
        ("How it was made", terms(_origin(result))),
    ]
    lead = "What each recipe loses against the dense fp32 cache, on the same prompts and tokens."
    return page(f"Evaluation of KV-cache recipes on {result['model']}", paragraph(lead), sections)


def _table(result: Mapping[str, Any]) -> str:
    """A group of rows for each task and context, so that the recipes stand first on a phone."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADS[2:])
    parts = [f"<table><thead><tr>{head}</tr></thead>"]
    for (task, context), rows in groupby(map(cells, result["rows"]), lambda texts: texts[:2]):
        title = f'<th colspan="{len(HEADS) - 2}" scope="rowgroup">{escape(task)} at {context}</th>'
        parts.append(f'<tbody><tr class="group">{title}</tr>')
        for _, _, recipe, *figures in rows:
            texts = "".join(f"<td>{escape(text)}</td>" for text in figures)
            parts.append(f'<tr><th scope="row"><code>{escape(recipe)}</code></th>{texts}</tr>')
        parts.append("</tbody>")
    return "".join([*parts, "</table>"])


def _failed(failed: Sequence[Mapping[str, Any]]) -> str:
    return "".join(
        paragraph(
            f"{c['task']} at {c['where']['context']:,}, {c['recipe']}: {c['error']}", "warning"
        )
        for c in failed
    )


def _origin(result: Mapping[str, Any]) -> dict[str, str]:
    env = result["env"]
    facts = {
        "command": env["command"],
        "kvik": f"{env['kvik']}, commit {env['commit']}" if env.get("commit") else env["kvik"],
        "model": f"{result['model']} (identity {result['model_identity'][:16]})",
        "text": f"{result['text']} (SHA-256 {result['text_sha256'][:16]})",
        "seed": result["seed"],
        "prompt": result["template"],
        "processor": f"{env['cpu']}; cores: {env['cores']}",
        "memory": human_bytes(env["memory_bytes"]),
        "Python": env["python"],
        "torch": env["torch"],
    }
    return {name: str(value) for name, value in facts.items()}
