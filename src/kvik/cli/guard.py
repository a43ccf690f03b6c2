"""A verb's end: every error in one line on standard error, and the exit status that tells it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from kvik.errors import KvikError

# A disk, a quota or a device that takes no more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def launch(command: click.Command) -> NoReturn:
    """Runs the command on this process's arguments and ends the process."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it: what is written goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores a hang-up
            signal.signal(number, _terminate)
    sys.exit(guarded(command, sys.argv[1:]))


class Terminated(BaseException):
    """A signal asked the process to end; not an Exception, as KeyboardInterrupt is none."""


def _terminate(number: int, frame: FrameType | None) -> None:
    # Signals often come twice, to the process and to its group: cleaning up goes on undisturbed.
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise Terminated(number)


def guarded(command: click.Command, args: Sequence[str]) -> int:
    """Run a command; its exit status, with every error told in one line on standard error."""
    from kvik.env import debug

    try:
        status = command.main(args=list(args), prog_name="kvik", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        return _tell(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        return _tell("interrupted", 130)
    except Terminated as error:
        return _tell("terminated", 128 + int(error.args[0]))
    except BrokenPipeError:
        _let_go()  # the reader went away
        return 1
    except MemoryError:
        return _tell("there is not enough memory: ask for less context or a smaller recipe", 2)
    except KvikError as error:
        return _tell(str(error), 2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("kvik") or debug():
            return _bug(error, debug())
        return _tell(f"{error.name} is not installed: pip install 'kvik[run]'", 2)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
            _let_go()  # all but standard output has a name
            return _tell(f"cannot write the output: {error.strerror}", 1)
        return _bug(error, debug())


def _let_go() -> None:
    """What is still buffered must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(message: str, status: int) -> int:
    line = " ".join(message.split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    with contextlib.suppress(OSError):
        print(f"kvik: {line}", file=sys.stderr)
    return status


def _bug(error: Exception, show_traceback: bool) -> int:
    if show_traceback:
        raise error
    name = type(error).__name__
    return _tell(f"this is a bug ({name}: {error}); KVIK_DEBUG=1 shows where it happened", 1)
