"""Render chat templates, one JSON request a line, in a process that may be killed at any time.

Run as a file by `template_process`; imports nothing of kvik. Requests hold ``template`` and
``variables``; replies hold ``text`` or ``error``. The environment offers what transformers'
offers: trimmed blocks, loop controls, ``raise_exception``, ``strftime_now``, a plain ``tojson``
and the ``generation`` tag.
"""

from __future__ import annotations

import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 0.7  # one render takes about a thousandth
MEMORY = 512 << 20  # bytes of address space
MAX_TEXT = 1 << 25  # characters rendered


class RefusedError(TemplateError):
    """What ``raise_exception`` raises: the template does not take these messages."""


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; here its body is enough."""

    tags = {"generation"}  # noqa: RUF012  # a set, as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refuse(message: object) -> None:
    raise RefusedError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers: jinja2's own would escape what HTML does not allow."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@lru_cache(8)
def _compile(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _render(template: str, variables: dict[str, Any]) -> str:
    pieces: list[str] = []
    length = 0
    for piece in _compile(template).generate(**variables):
        length += len(piece)
        if length > MAX_TEXT:
            raise MemoryError
        pieces.append(piece)
    return "".join(pieces)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The reply to one request."""
    try:
        return {"text": _render(request["template"], request["variables"])}
    except RefusedError as error:
        return {"error": f"refuses these messages: {error}"}
    except TemplateSyntaxError as error:
        return {"error": f"cannot be read (line {error.lineno}: {error.message})"}
    except MemoryError:
        return {"error": f"wants more than {MEMORY >> 20} MiB or {MAX_TEXT} characters"}
    except Exception as error:  # whatever a template may run into
        return {"error": f"fails with {type(error).__name__}: {error}"}


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not a POSIX system; the time limits remain
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _limit_time(seconds: float) -> None:
    """Die by SIGPROF after ``seconds`` of processor time; 0 calls it off."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main() -> None:
    """Answer until the other side closes."""
    _limit_memory()
    print("ready", flush=True)
    for line in sys.stdin:
        _limit_time(CPU_SECONDS)
        reply = json.dumps(answer(json.loads(line)))
        _limit_time(0)
        print(reply, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    main()
