"""Where the KV bytes go on traces of requests: reserving against kvik's pages.

    python bench/waste.py --out bench/results/waste.jsonl

What ``kvik bench waste`` does, for two shapes of traffic and two recipes. Single instructions are
short, so more of them arrive in a second: at 4 nobody would wait. No model runs and no figure is a
time of this machine: the same commit gives the same records everywhere.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from common import emit

from kvik.bench.shapes import SHAPES as MODELS
from kvik.bench.trace import SHAPES, generate
from kvik.bench.waste import Setting, document, measure
from kvik.machine import parse_bytes
from kvik.recipe import Recipe

RATES = {"sharegpt": 4.0, "alpaca": 40.0}


def main() -> None:
    """Runs every trace with every recipe and writes one record for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="opt-13b", choices=MODELS)
    parser.add_argument("--memory", default="12GiB")
    parser.add_argument("--kv", action="append", help="recipe; default fp16 and int8")
    parser.add_argument("--requests", type=int, help="of a trace; default 300, alpaca 3,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("bench/results/waste.jsonl"))
    args = parser.parse_args()
    spec, memory = MODELS[args.model], parse_bytes(args.memory)
    for shape, rate in RATES.items():
        requests = args.requests or (3000 if shape == "alpaca" else 300)
        facts = {"name": shape, "rate": rate, "seed": args.seed}
        trace = generate(
            SHAPES[shape], requests=requests, rate=rate, context=spec.context, seed=args.seed
        )
        for recipe in args.kv or ["fp16", "int8"]:
            setting = Setting(Recipe.parse(recipe).resolve(spec), memory, spec.context)
            result = document(setting, trace, measure(setting, trace))
            result["trace"] = facts | result["trace"]
            emit(args.out, {"bench": "waste", **result})


if __name__ == "__main__":
    main()
