"""``kvik-lm-eval``: lm-eval's own command, which then knows ``--model kvik``.

lm-eval finds models of other packages by itself only after version 0.4.13; there, and with this,
``kvik-lm-eval ARGS`` is ``lm_eval ARGS``.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> None:
    """Registers the model class and hands the command line to lm-eval."""
    from kvik.errors import KvikError

    try:
        from lm_eval.__main__ import cli_evaluate

        from kvik.evaluate.lm_eval import register
    except ModuleNotFoundError as error:
        _give_up(f"{error.name} is not installed: pip install 'kvik[run,lmeval]'")
    register()
    try:
        cli_evaluate()
    except KvikError as error:
        _give_up(str(error))


def _give_up(reason: str) -> NoReturn:
    print(f"kvik: {reason}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
