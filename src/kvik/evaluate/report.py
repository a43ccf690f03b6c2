"""``report.html``: the facts of ``compare.json`` on one page that needs nothing else.

No script, no request to anywhere; every text that comes from outside is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from importlib import resources
from typing import Any

from kvik.evaluate.figures import COLUMNS, kl_text
from kvik.machine import human_bytes

# The KL bars are logarithmic between these, in nats.
KL_LEAST, KL_MOST = 1e-6, 10.0

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="soft">{context:,} tokens of context; quality over the tokens after it, against the full
fp32 cache. Each recipe ran in a process of its own.</p>
<h2>Figures</h2>
<div class="card scroll">{table}</div>
<h2>Bytes against quality</h2>
<div class="card bars">{bars}</div>
<h2>What the figures mean</h2>
<dl class="card">{legend}</dl>
<h2>How they were made</h2>
<dl class="card">{origin}</dl>
</body>
</html>
"""


def render(comparison: Mapping[str, Any]) -> str:
    """The page of a comparison as HTML text."""
    return _PAGE.format(
        title=escape(f"KV-cache recipes on {comparison['model']}"),
        style=resources.files("kvik.evaluate").joinpath("report.css").read_text(encoding="utf-8"),
        context=comparison["context"],
        table=_table(comparison["results"]),
        bars=_bars([r for r in comparison["results"] if "error" not in r]),
        legend=_terms({column.head: column.meaning for column in COLUMNS}),
        origin=_terms(_origin(comparison["env"])),
    )


def _table(results: list[dict[str, Any]]) -> str:
    head = "".join(f'<th scope="col">{escape(c.head)}</th>' for c in COLUMNS)
    rows = [f'<thead><tr><th scope="col">recipe</th>{head}</tr></thead><tbody>']
    for result in results:
        if "error" in result:
            cells = f'<td class="error" colspan="{len(COLUMNS)}">{escape(result["error"])}</td>'
        else:
            cells = "".join(f"<td>{escape(c.write(result))}</td>" for c in COLUMNS)
        name = f'<th scope="row"><code>{escape(result["recipe"])}</code></th>'
        rows.append(f"<tr>{name}{cells}</tr>")
    return f"<table>{''.join(rows)}</tbody></table>"


def _bars(results: list[dict[str, Any]]) -> str:
    most = max((r["measured_bytes"] for r in results), default=0) or 1
    rows = [
        '<div class="row head"><span>recipe</span>'
        '<span><i class="key" style="background:var(--bytes)"></i>KV bytes</span>'
        '<span><i class="key" style="background:var(--kl)"></i>KL in nats, logarithmic: '
        "shorter is closer to the full cache</span></div>"
    ]
    for result in results:
        size, kl = result["measured_bytes"], result["kl_mean"]
        rows.append(
            f'<div class="row"><code>{escape(result["recipe"])}</code>'
            f"{_bar('bytes', size / most, human_bytes(size))}"
            f"{_bar('kl', kl_length(kl), kl_text(kl))}</div>"
        )
    return "".join(rows)


def _bar(kind: str, share: float, label: str) -> str:
    width = f"{100 * min(max(share, 0.0), 1.0):.2f}"
    return (
        '<div class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10" opacity=".45"/>'
        f'<rect class="{kind}" width="{width}" height="10"/></svg>'
        f"<span>{escape(label)}</span></div>"
    )


def kl_length(kl: float) -> float:
    """Share of the bar that a KL in nats takes, on the logarithmic scale."""
    if kl <= KL_LEAST:
        return 0.0
    return min(1.0, math.log(kl / KL_LEAST) / math.log(KL_MOST / KL_LEAST))


def _origin(env: Mapping[str, Any]) -> dict[str, str]:
    facts = {
        "command": env["command"],
        "kvik": f"{env['kvik']}, commit {env['commit']}" if env.get("commit") else env["kvik"],
        "processor": f"{env['cpu']}; cores: {env['cores']}, threads: {env['threads']}",
        "instruction sets": " ".join(env["instruction_sets"]),
        "memory": human_bytes(env["memory_bytes"]),
        "system": env["system"],
        "Python": env["python"],
        "torch": env["torch"],
    }
    return {name: str(value) for name, value in facts.items() if value}


def _terms(pairs: Mapping[str, str]) -> str:
    return "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items())
