"""What every layer is made of: where its weights come from, linear maps and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from kvik.errors import ModelError
from kvik.ops.native_layers import Places
from kvik.ops.native_linear import Packed, Projection

# A matrix is a tensor, or packed for the native kernels.
Weight = Tensor | Packed

# Token ids, or positions: plain numbers, or int64 [N].
Numbers = Sequence[int] | Tensor

# Gives the weight of a canonical name, which must have exactly this shape. The code that builds
# a decoder is the only list of its weights: a loaded and a random model are built by it alike.
Take = Callable[[str, tuple[int, ...]], Weight]


def vector(take: Take, name: str, size: int) -> Tensor:
    """Take a norm's or a bias's tensor [size]; these are never packed."""
    found = take(name, (size,))
    if not isinstance(found, Tensor):
        raise ModelError(f"{name!r} is packed; only matrices may be")
    return found


class StepCache(Protocol):
    """What layers ask of the cache while it runs one planned step of N tokens."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Rows ``start .. end`` of each of the B sequences in the flat batch."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Store k [N, H, k_dim] and v [N, H, v_dim], attend with q [N, H * G, k_dim].

        All come before RoPE; rotation, mask, window, scale and softcap happen inside. A latent
        layer gives no v, a shared one neither. Returns [N, H * G, v_dim] and the log-sum-exp.
        """

    def places(self, layers: Sequence[int]) -> Places | None:
        """Where the step finds the tokens of these layers, for kernels that run them all in a call.

        None where only :meth:`attend` will do.
        """

    def read_state(self, layer: int) -> Tensor:
        """The state before this step, [B, *state_shape]; zeros for a new sequence."""

    def write_state(self, layer: int, state: Tensor) -> None:
        """The state after this step."""


class Mixer(Protocol):
    """The part of a layer that mixes tokens: x [N, hidden] to [N, hidden], by way of the cache."""

    def __call__(self, x: Tensor, cache: StepCache) -> Tensor: ...


@dataclass(frozen=True)
class Weights:
    """Named weights of one dtype, float32 or float64, handed out under the name once checked."""

    tensors: Mapping[str, Weight]
    taken: set[str] = field(default_factory=set)

    def __call__(self, name: str, shape: tuple[int, ...]) -> Weight:
        """The weight of that name; ModelError when it is missing or of another shape."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(f"the model has no tensor {name!r}; its file is incomplete")
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"the tensor {name!r} is {list(tensor.shape)} and the model's description makes "
                f"it {list(shape)}; the file and the description do not belong together"
            )
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ModelError(f"the tensor {name!r} is {tensor.dtype}; convert it to float32")
        self.taken.add(name)
        return tensor

    def finish(self) -> None:
        """Refuse tensors that nobody asked for: leaving them out would change the model."""
        if left := sorted(self.tensors.keys() - self.taken):
            raise ModelError(
                f"the model has {len(left)} tensors that its description does not account for: "
                f"{', '.join(left[:3])}"
            )


@dataclass(frozen=True)
class Linear:
    """x [..., in] to [..., out]; with a packed weight, [n, in] to [n, out]."""

    weight: Weight
    bias: Tensor | None = None

    @classmethod
    def build(cls, take: Take, name: str, out: int, into: int, bias: bool = False) -> Linear:
        """Take ``name.weight`` [out, in] and perhaps ``name.bias`` [out]."""
        weight = take(f"{name}.weight", (out, into))
        return cls(weight, vector(take, f"{name}.bias", out) if bias else None)

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(self.weight, Packed):
            return self._projection(x)
        return functional.linear(x, self.weight, self.bias)

    @cached_property
    def _projection(self) -> Projection:
        assert isinstance(self.weight, Packed)
        return Projection([self.weight], [self.bias])


@dataclass(frozen=True)
class RMSNorm:
    """Root mean square norm over the last dimension (arXiv 1910.07467)."""

    weight: Tensor
    eps: float

    @classmethod
    def build(cls, take: Take, name: str, size: int, eps: float) -> RMSNorm:
        """Take ``name.weight`` [size], the factor that multiplies."""
        return cls(vector(take, f"{name}.weight", size), eps)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
