"""A number of tokens, either absolute or as a share of the tokens seen."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Amount:
    """``512`` tokens or ``20%`` of them. Shares are exact fractions, so rounding never drifts."""

    value: Fraction
    share: bool = False

    @classmethod
    def parse(cls, text: str) -> Amount:
        """Reads ``512`` or ``20%``; ValueError for anything else."""
        body = text.removesuffix("%")
        whole, _, part = body.partition(".")
        if not (whole.isascii() and whole.isdigit() and (not part or part.isdigit())):
            raise ValueError(f"{text!r} is neither a number of tokens nor a share such as 20%")
        if text == body:
            if part or len(whole) > 9:
                raise ValueError(f"{text!r} is no number of tokens; write 512, or 20% for a share")
            return cls(Fraction(int(whole)))
        value = Fraction(body) / 100
        if value > 1:
            raise ValueError(f"{text!r} is more than everything")
        return cls(value, share=True)

    def of(self, tokens: int) -> int:
        """How many tokens this is when ``tokens`` were seen (rounded down)."""
        return int(self.value * tokens) if self.share else int(self.value)

    def __str__(self) -> str:
        if not self.share:
            return str(int(self.value))
        hundred = self.value * 100
        return f"{float(hundred):.12g}%"
