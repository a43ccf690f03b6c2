"""Traces of requests: when each arrives and how many tokens it brings and asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from kvik.errors import KvikError

MOST_REQUESTS = 100_000
MOST_TOKENS = 10_000_000  # of one request, in a trace from a file
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Arrival:
    """A request: seconds since the trace began, ``prompt`` tokens in, ``output`` tokens out."""

    time: float
    prompt: int
    output: int

    @property
    def final(self) -> int:
        """Tokens cached at its end; the last one that it produces is never fed back."""
        return self.prompt + self.output - 1


@dataclass(frozen=True)
class Lengths:
    """A log-normal length in tokens, cut at ``most``: ``mean`` is that of the cut lengths.

    ``sigma`` is the spread of the logarithm: at 1.0 one length in forty is beyond 7.4 times the
    median.
    """

    mean: float
    sigma: float

    def draw(self, rng: np.random.Generator, count: int, most: int) -> NDArray[np.int64]:
        """``count`` lengths in 1 .. most, in random order: evenly spaced quantiles.

        So even a short trace has the mean and the tail; only the order depends on the seed.
        KvikError where the mean does not fit below ``most``.
        """
        log = NormalDist(self._mu(most), self.sigma)
        lengths = np.exp([log.inv_cdf((i + 0.5) / count) for i in range(count)])
        return rng.permutation(np.clip(np.rint(lengths), 1, most).astype(np.int64))

    def _mu(self, most: int) -> float:
        """Mean of the logarithm that gives the cut lengths their mean, by bisection."""
        if self.mean > 0.7 * most:
            raise KvikError(
                f"lengths of {self.mean:g} tokens on average do not fit below {most:,}: "
                "choose a shorter trace or a larger --context"
            )
        low, high = math.log(self.mean) - self.sigma**2, math.log(most) + self.sigma**2
        for _ in range(60):
            mu = (low + high) / 2
            low, high = (mu, high) if _cut_mean(mu, self.sigma, most) < self.mean else (low, mu)
        return mu


def _cut_mean(mu: float, sigma: float, most: int) -> float:
    """E[min(X, most)] of a log-normal X."""
    z = (math.log(most) - mu) / sigma
    below = math.exp(mu + sigma**2 / 2) * _NORMAL.cdf(z - sigma)
    return below + most * _NORMAL.cdf(-z)


@dataclass(frozen=True)
class Shape:
    """A kind of traffic: how long prompts and outputs are, each at most half of ``longest``."""

    prompt: Lengths
    output: Lengths
    longest: int = 2048


# Parameters chosen after the two workloads of the PagedAttention paper (arXiv 2309.06180):
# conversations, and single instructions. The spreads are ours: they give long tails.
SHAPES = {
    "sharegpt": Shape(Lengths(161.0, 1.3), Lengths(338.0, 1.0)),
    "alpaca": Shape(Lengths(19.3, 0.6), Lengths(58.5, 0.9)),
}


def generate(
    shape: Shape, *, requests: int, rate: float, context: int, seed: int
) -> tuple[Arrival, ...]:
    """Poisson arrivals, ``rate`` a second; no request is longer than ``context`` tokens."""
    if not rate > 0:
        raise KvikError(f"requests have to arrive: a rate above 0 is needed, not {rate:g}")
    rng = np.random.default_rng(seed)
    longest = min(shape.longest, context)
    times = np.cumsum(rng.exponential(1.0 / rate, requests)).tolist()
    prompts = shape.prompt.draw(rng, requests, longest // 2).tolist()
    outputs = shape.output.draw(rng, requests, longest - longest // 2).tolist()
    return tuple(map(Arrival, times, prompts, outputs))


def dump(trace: Sequence[Arrival]) -> str:
    """JSON Lines, one request a line; :func:`parse` reads them."""
    return "".join(json.dumps(asdict(arrival)) + "\n" for arrival in trace)


def parse(text: str, source: str) -> tuple[Arrival, ...]:
    """The trace in JSON Lines, sorted by time; KvikError names the line that makes no sense."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            found.append(_arrival(line, f"{source}, line {number}"))
    if not found:
        raise KvikError(f"{source} holds no requests: one JSON object a line is expected")
    if len(found) > MOST_REQUESTS:
        raise KvikError(f"{source} holds {len(found):,} requests; at most {MOST_REQUESTS:,} fit")
    return tuple(sorted(found, key=lambda arrival: arrival.time))


def _arrival(line: str, where: str) -> Arrival:
    try:
        fields = json.loads(line)
        time, prompt, output = fields["time"], fields["prompt"], fields["output"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KvikError(f'{where}: expected {{"time": 0.5, "prompt": 12, "output": 34}}') from None
    if type(time) not in (int, float) or not 0 <= time < 1e9:
        raise KvikError(f"{where}: the time is a number of seconds, 0 or more")
    if not all(type(n) is int and 1 <= n <= MOST_TOKENS for n in (prompt, output)):
        raise KvikError(f"{where}: prompt and output are whole numbers of tokens, 1 or more")
    return Arrival(float(time), prompt, output)
