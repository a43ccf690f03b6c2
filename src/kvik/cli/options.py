"""What the verbs share: arguments, options, number types and the help with examples."""

from __future__ import annotations

import math
from typing import Any

import click

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
MODEL = click.argument("model")


class Number(click.FloatRange):
    """A finite number in a range; click's own lets NaN through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does, but NaN and infinities are refused."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Help(click.Command):
    """A command whose epilog keeps its line breaks, for examples, and that loses no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but an option given twice is refused: click would keep the last."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param in self.params:
            single = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if single and order.count(param) > 1:
                raise click.UsageError(f"{param.opts[0]} is given more than once", ctx)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class HelpGroup(Help, click.Group):
    """A group with the same epilog."""

    command_class = Help
