"""``kvik doctor``: what this machine has, what kvik uses of it, and where models lie."""

from __future__ import annotations

import platform
import shutil
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvik import __version__, env, machine, native
from kvik.errors import KvikError
from kvik.evaluate.provenance import commit, version_of
from kvik.machine import human_bytes
from kvik.models import sources

_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "jinja2", "transformers")
_COMPILERS = ("c++", "g++", "clang++", "cl", "clang-cl")
_BACKENDS = {
    "native": "native (kvik's own kernels)",
    "reference": "reference (plain torch)",
    None: "none: torch is not installed (pip install 'kvik[run]')",
}


def examine() -> dict[str, Any]:
    """The facts, ready for JSON; asks torch, where it is installed, how many threads it uses."""
    library = native_library()
    kernels = "native" if library["file"] else "reference"
    return {
        "kvik": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": {name: version_of(name) for name in _PACKAGES},
        "cpu": machine.cpu_model(),
        "cores": {
            "present": psutil.cpu_count(),
            "affinity": machine.affinity(),
            "cgroup_quota": machine.cgroup_quota(),
            "usable": machine.usable_cores(),
            "used": machine.threads(),
        },
        "instruction_sets": machine.instruction_sets(),
        "memory": {
            "limit_bytes": machine.memory_limit(),
            "available_bytes": machine.available_memory(),
        },
        "backend": kernels if version_of("torch") else None,
        "native": library,
        "models": {"folder": str(sources.folder()), "present": sources.present()},
    }


def native_library() -> dict[str, Any]:
    """The library's file, instruction sets and threads; without one, ``why`` and what to do."""
    none: dict[str, Any] = {"file": None, "variant": None, "variants": [], "threads": None}
    try:
        lib = native.library()
    except KvikError as error:
        return {**none, "why": str(error)}
    if lib is None:
        return {**none, "why": _why_none()}
    return {
        "file": str(native.path(lib)),
        "variant": native.variant(lib),
        "variants": native.variants(lib),
        "threads": native.threads(lib),
        "why": None,
    }


def _why_none() -> str:
    if env.native() == "off":
        return "KVIK_NATIVE=off"
    if any(shutil.which(name) for name in _COMPILERS):
        return (
            "kvik was installed without it, but there is a C++ compiler: install kvik again "
            "(pip install --no-cache-dir --force-reinstall --no-deps; -v shows what fails)"
        )
    return (
        "kvik was installed without it and there is no C++ compiler: get one (apt-get install g++, "
        "or xcode-select --install), then install kvik again"
    )


def show(facts: dict[str, Any]) -> None:
    """Print the facts as a person reads them."""
    cores, memory = facts["cores"], facts["memory"]
    quota = "none" if cores["cgroup_quota"] is None else f"{cores['cgroup_quota']:g}"
    missing = [name for name, version in facts["packages"].items() if version is None]
    present = facts["models"]["present"]
    rows = {
        "kvik": f"{facts['kvik']}" + (f", commit {facts['commit']}" if facts["commit"] else ""),
        "python": facts["python"],
        "system": facts["system"],
        "packages": ", ".join(f"{n} {v}" for n, v in facts["packages"].items() if v),
        "missing": ", ".join(missing),
        "processor": facts["cpu"],
        "cores": f"{cores['used']} used of {cores['usable']} usable; "
        f"affinity {cores['affinity']}, cgroup quota {quota}",
        "instruction sets": " ".join(facts["instruction_sets"]) or "none known",
        "memory": f"{human_bytes(memory['available_bytes'])} free "
        f"of {human_bytes(memory['limit_bytes'])}",
        "backend": _BACKENDS[facts["backend"]],
        "native library": _library_line(facts["native"]),
        "models": f"{facts['models']['folder']}: {', '.join(present) or 'none yet'}",
    }
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows.items():
        if value:
            table.add_row(Text(name, style="bold"), Text(value, overflow="fold"))
    Console().print(table)


def _library_line(found: dict[str, Any]) -> str:
    if found["file"] is None:
        return f"none: {found['why']}"
    others = [name for name in found["variants"] if name != found["variant"]]
    also = f" (also {', '.join(others)})" if others else ""
    return f"{found['variant']}{also}, threads {found['threads']}, {found['file']}"
