"""A number of tokens, either absolute or as a share of the tokens seen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

DECIMALS = 9
_FORM = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,{DECIMALS}}})?)(%?)\Z", re.ASCII)


@dataclass(frozen=True)
class Amount:
    """``512`` tokens or ``20%`` of them. Shares are exact fractions, so rounding never drifts.

    ValueError for what cannot be written: parts of a token, more than everything, a share with
    more than 9 decimals.
    """

    value: Fraction
    share: bool = False

    def __post_init__(self) -> None:
        hundred = self.value * 100
        if self.share and not 0 <= hundred <= 100:
            raise ValueError(f"{_decimal(hundred)}% is not between nothing and everything")
        if self.share and (hundred * 10**DECIMALS).denominator != 1:
            raise ValueError(f"a share has at most {DECIMALS} decimals, not {_decimal(hundred)}%")
        if not self.share and (self.value.denominator != 1 or not 0 <= self.value < 10**9):
            text = _decimal(self.value)
            raise ValueError(f"{text!r} is no number of tokens; write 512, or 20% for a share")

    @classmethod
    def parse(cls, text: str) -> Amount:
        """Reads ``512`` or ``20%``; ValueError for anything else."""
        match = _FORM.match(text)
        if not match:
            raise ValueError(f"{text!r} is neither a number of tokens nor a share such as 20%")
        return cls(Fraction(match[1]) / (100 if match[2] else 1), share=bool(match[2]))

    def of(self, tokens: int) -> int:
        """How many tokens this is when ``tokens`` were seen (rounded down)."""
        return int(self.value * tokens) if self.share else int(self.value)

    def __str__(self) -> str:
        return f"{_decimal(self.value * 100)}%" if self.share else str(int(self.value))


def _decimal(value: Fraction) -> str:
    return f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
