"""Built-in models against public figures: bytes a token, growth, totals, fixed state."""

from __future__ import annotations

import pytest
from tests.plan.ask import ask

from kvik.errors import SpecError
from kvik.spec import LayerSpec, ModelSpec, load
from kvik.spec.presets import preset_spec, presets

# At two bytes a value: B/token inside every window, B/token past all, then totals at three
# contexts as published figures round them.
TABLE = [
    ("Llama-2-7B", 524288, 524288, "2 GiB", "16 GiB", "64 GiB"),
    ("Llama-2-13B", 819200, 819200, "3.125 GiB", "25 GiB", "100 GiB"),
    ("Llama-2-70B", 327680, 327680, "1.25 GiB", "10 GiB", "40 GiB"),
    ("Llama-3-8B", 131072, 131072, "512 MiB", "4 GiB", "16 GiB"),
    ("Llama-3.1-8B", 131072, 131072, "512 MiB", "4 GiB", "16 GiB"),
    ("Llama-3-70B", 327680, 327680, "1.25 GiB", "10 GiB", "40 GiB"),
    ("Llama-3.1-70B", 327680, 327680, "1.25 GiB", "10 GiB", "40 GiB"),
    ("Llama-3.1-405B", 516096, 516096, "1.969 GiB", "15.75 GiB", "63 GiB"),
    ("Llama-3.2-1B", 32768, 32768, "128 MiB", "1 GiB", "4 GiB"),
    ("Llama-4-Scout", 196608, 49152, "768 MiB", "2.625 GiB", "7.125 GiB"),
    ("Llama-4-Maverick", 196608, 49152, "768 MiB", "2.625 GiB", "7.125 GiB"),
    ("Mistral-7B-v0.1", 131072, 0, "512 MiB", "512 MiB", "512 MiB"),
    ("Mistral-7B-v0.2", 131072, 131072, "512 MiB", "4 GiB", "16 GiB"),
    ("Mistral-7B-v0.3", 131072, 131072, "512 MiB", "4 GiB", "16 GiB"),
    ("Mistral-Nemo-12B", 163840, 163840, "640 MiB", "5 GiB", "20 GiB"),
    ("Mistral-Small-3-24B", 163840, 163840, "640 MiB", "5 GiB", "20 GiB"),
    ("Mixtral-8x7B", 131072, 131072, "512 MiB", "4 GiB", "16 GiB"),
    ("Gemma-2B", 18432, 18432, "72 MiB", "576 MiB", "2.25 GiB"),
    ("Gemma-7B", 458752, 458752, "1.75 GiB", "14 GiB", "56 GiB"),
    ("Gemma-2-2B", 106496, 53248, "416 MiB", "1.828 GiB", "6.703 GiB"),
    ("Gemma-2-9B", 344064, 172032, "1.312 GiB", "5.906 GiB", "21.66 GiB"),
    ("Gemma-3-270m", 18432, 3072, "19.5 MiB", "103.5 MiB", "391.5 MiB"),
    ("Gemma-3-1B", 26624, 4096, "27 MiB", "139 MiB", "523 MiB"),
    ("Gemma-3-4B", 139264, 20480, "196 MiB", "756 MiB", "2.613 GiB"),
    ("Gemma-3-27B", 507904, 81920, "736 MiB", "2.906 GiB", "10.41 GiB"),
    ("Gemma-3n-E2B", 40960, 8192, "48 MiB", "272 MiB", "1.016 GiB"),
    ("Gemma-3n-E4B", 40960, 8192, "48 MiB", "272 MiB", "1.016 GiB"),
    ("Gemma-4-31B", 901120, 81920, "1.094 GiB", "3.281 GiB", "10.78 GiB"),
    ("Gemma-4-12B", 344064, 16384, "384 MiB", "832 MiB", "2.312 GiB"),
    ("Falcon-7B", 8192, 8192, "32 MiB", "256 MiB", "1 GiB"),
    ("Falcon-180B", 163840, 163840, "640 MiB", "5 GiB", "20 GiB"),
    ("StarCoder-15.5B", 20480, 20480, "80 MiB", "640 MiB", "2.5 GiB"),
    ("PaLM-540B", 120832, 120832, "472 MiB", "3.688 GiB", "14.75 GiB"),
    ("Phi-2", 327680, 327680, "1.25 GiB", "10 GiB", "40 GiB"),
    ("Phi-3-mini", 393216, 393216, "1.5 GiB", "12 GiB", "48 GiB"),
    ("Phi-3-medium", 204800, 204800, "800 MiB", "6.25 GiB", "25 GiB"),
    ("Phi-4-14B", 204800, 204800, "800 MiB", "6.25 GiB", "25 GiB"),
    ("Qwen1.5-7B", 524288, 524288, "2 GiB", "16 GiB", "64 GiB"),
    ("Qwen1.5-72B", 2621440, 2621440, "10 GiB", "80 GiB", "320 GiB"),
    ("Qwen2-7B", 57344, 57344, "224 MiB", "1.75 GiB", "7 GiB"),
    ("Qwen2.5-7B", 57344, 57344, "224 MiB", "1.75 GiB", "7 GiB"),
    ("Qwen2.5-0.5B", 12288, 12288, "48 MiB", "384 MiB", "1.5 GiB"),
    ("Qwen2.5-32B", 262144, 262144, "1 GiB", "8 GiB", "32 GiB"),
    ("Qwen2.5-72B", 327680, 327680, "1.25 GiB", "10 GiB", "40 GiB"),
    ("Qwen3-0.6B", 114688, 114688, "448 MiB", "3.5 GiB", "14 GiB"),
    ("Qwen3-1.7B", 114688, 114688, "448 MiB", "3.5 GiB", "14 GiB"),
    ("Qwen3-4B", 147456, 147456, "576 MiB", "4.5 GiB", "18 GiB"),
    ("Qwen3-8B", 147456, 147456, "576 MiB", "4.5 GiB", "18 GiB"),
    ("Qwen3-32B", 262144, 262144, "1 GiB", "8 GiB", "32 GiB"),
    ("Qwen3-30B-A3B", 98304, 98304, "384 MiB", "3 GiB", "12 GiB"),
    ("Qwen3-235B-A22B", 192512, 192512, "752 MiB", "5.875 GiB", "23.5 GiB"),
    ("Qwen3-Next-80B-A3B", 24576, 24576, "96 MiB", "768 MiB", "3 GiB"),
    ("Qwen3.5-9B", 32768, 32768, "128 MiB", "1 GiB", "4 GiB"),
    ("Qwen3.5-27B", 65536, 65536, "256 MiB", "2 GiB", "8 GiB"),
    ("Qwen3.5-122B-A10B", 24576, 24576, "96 MiB", "768 MiB", "3 GiB"),
    ("DeepSeek-V2", 69120, 69120, "270 MiB", "2.109 GiB", "8.438 GiB"),
    ("DeepSeek-V3", 70272, 70272, "274.5 MiB", "2.145 GiB", "8.578 GiB"),
    ("DeepSeek-R1", 70272, 70272, "274.5 MiB", "2.145 GiB", "8.578 GiB"),
    ("Kimi-K2", 70272, 70272, "274.5 MiB", "2.145 GiB", "8.578 GiB"),
    ("GLM-5", 89856, 89856, "351 MiB", "2.742 GiB", "10.97 GiB"),
    ("Kimi-Linear-48B", 8064, 8064, "31.5 MiB", "252 MiB", "1008 MiB"),
    ("MiniCPM3-4B", 35712, 35712, "139.5 MiB", "1.09 GiB", "4.359 GiB"),
    ("GLM-4-9B", 40960, 40960, "160 MiB", "1.25 GiB", "5 GiB"),
    ("GLM-4-32B-0414", 62464, 62464, "244 MiB", "1.906 GiB", "7.625 GiB"),
    ("GLM-4.5", 376832, 376832, "1.438 GiB", "11.5 GiB", "46 GiB"),
    ("GLM-4.6", 376832, 376832, "1.438 GiB", "11.5 GiB", "46 GiB"),
    ("gpt-oss-20b", 49152, 24576, "99 MiB", "771 MiB", "3.003 GiB"),
    ("OLMo-2-7B", 524288, 524288, "2 GiB", "16 GiB", "64 GiB"),
    ("OLMo-2-13B", 819200, 819200, "3.125 GiB", "25 GiB", "100 GiB"),
    ("OLMo-2-32B", 262144, 262144, "1 GiB", "8 GiB", "32 GiB"),
    ("OLMo-3-7B", 524288, 131072, "2 GiB", "5.5 GiB", "17.5 GiB"),
    ("Command-R v01", 1310720, 1310720, "5 GiB", "40 GiB", "160 GiB"),
    ("Command-R 08-2024", 163840, 163840, "640 MiB", "5 GiB", "20 GiB"),
    ("Command-R+", 262144, 262144, "1 GiB", "8 GiB", "32 GiB"),
    ("DBRX", 163840, 163840, "640 MiB", "5 GiB", "20 GiB"),
    ("Jamba-v0.1", 16384, 16384, "64 MiB", "512 MiB", "2 GiB"),
    ("Jamba-1.5-Mini", 16384, 16384, "64 MiB", "512 MiB", "2 GiB"),
    ("Nemotron-H-56B", 40960, 40960, "160 MiB", "1.25 GiB", "5 GiB"),
    ("Granite-4.0-H-Small", 16384, 16384, "64 MiB", "512 MiB", "2 GiB"),
    ("MiniMax-01", 40960, 40960, "160 MiB", "1.25 GiB", "5 GiB"),
    ("Hunyuan-Large", 131072, 131072, "512 MiB", "4 GiB", "16 GiB"),
    ("SmolLM2-135M", 23040, 23040, "90 MiB", "720 MiB", "2.812 GiB"),
    ("SmolLM2-1.7B", 196608, 196608, "768 MiB", "6 GiB", "24 GiB"),
    ("SmolLM3-3B", 73728, 73728, "288 MiB", "2.25 GiB", "9 GiB"),
    ("GPT-2", 36864, 36864, "144 MiB", "1.125 GiB", "4.5 GiB"),
    ("GPT-J-6B", 458752, 458752, "1.75 GiB", "14 GiB", "56 GiB"),
    ("OPT-13B", 819200, 819200, "3.125 GiB", "25 GiB", "100 GiB"),
    ("BLOOM-176B", 4014080, 4014080, "15.31 GiB", "122.5 GiB", "490 GiB"),
    ("MPT-7B", 524288, 524288, "2 GiB", "16 GiB", "64 GiB"),
    ("Whisper-large-v3", 163840, 163840, "640 MiB", "5 GiB", "20 GiB"),
]
CONTEXTS = (4096, 32_768, 131_072)
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
# What the table leaves out: keys that an indexer keeps beside the latent.
WITHOUT_INDEXER = {"GLM-5"}


def held(layer: LayerSpec, tokens: int, extra: bool = True) -> int:
    """Bytes that a layer holds after ``tokens`` tokens, at two bytes a value."""
    kept = tokens if layer.window is None else min(tokens, layer.window)
    if layer.kind == "chunked" and layer.window:
        kept = min(tokens, layer.window)
    side = sum(2 * e.dim * e.rows(tokens) for e in layer.extra) if extra else 0
    return 2 * layer.row_values * kept + side


def total(spec: ModelSpec, tokens: int, extra: bool = True) -> int:
    """The same for all layers."""
    return sum(held(layer, tokens, extra) for layer in spec.layers)


def growth(spec: ModelSpec) -> int:
    """Bytes of a token past every window and ratio."""
    far = 1 << 24
    return (total(spec, far + 128) - total(spec, far)) // 128


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_table_of_known_models(row: tuple[str, int, int, str, str, str]):
    name, inside, past, *totals = row
    spec, extra = preset_spec(name), name not in WITHOUT_INDEXER
    assert total(spec, 1, extra) == inside
    if extra:
        assert growth(spec) == past
    for tokens, said in zip(CONTEXTS, totals, strict=True):
        number, unit = said.split()
        bound = 0.51 * 10 ** -len(number.partition(".")[2])
        assert total(spec, tokens, extra) / UNITS[unit] == pytest.approx(float(number), abs=bound)


@pytest.mark.parametrize(
    ("name", "inside", "past"),
    [
        ("Mistral-Large-2", 360_448, 360_448),
        ("Mixtral-8x22B", 229_376, 229_376),
        ("Gemma-2-27B", 376_832, 188_416),
        ("Gemma-3-12B", 393_216, 65_536),
        ("Gemma-4-E4B", 57_344, 16_384),
        ("Gemma-4-26B-A4B", 225_280, 20_480),
        ("Falcon-40B", 122_880, 122_880),
        ("StarCoder2-15B", 81_920, 0),
        ("Phi-4-mini", 131_072, 131_072),
        ("Qwen2.5-14B", 196_608, 196_608),
        ("Qwen3-14B", 163_840, 163_840),
        ("Qwen3-Coder-480B", 253_952, 253_952),
        ("Qwen3-Coder-30B", 98_304, 98_304),
        ("Qwen3.5-35B-A3B", 20_480, 20_480),
        ("Qwen3.5-397B-A17B", 30_720, 30_720),
        ("DeepSeek-V2-Lite", 31_104, 31_104),
        ("Kimi-K3", 27_648, 27_648),
        ("Mistral-Small-4", 23_040, 23_040),
        ("GLM-4.5-Air", 188_416, 188_416),
        ("GLM-4.7-Flash", 54_144, 54_144),
        ("gpt-oss-120b", 73_728, 36_864),
        ("OLMo-3-32B", 262_144, 65_536),
        ("Command-R7B", 131_072, 32_768),
        ("Command-A", 262_144, 65_536),
        ("Jamba-1.5-Large", 36_864, 36_864),
        ("Nemotron-3-Nano-30B-A3B", 6144, 6144),
        ("Falcon-H1-34B", 147_456, 147_456),
        ("MiniMax-M2", 253_952, 253_952),
        ("LFM2-1.2B", 12_288, 12_288),
        ("GPT-2-XL", 307_200, 307_200),
        ("OPT-175B", 4_718_592, 4_718_592),
        ("MPT-30B", 1_376_256, 1_376_256),
        ("MiMo-V2-Flash", 222_720, 23_040),
        ("Step-3.7-Flash", 184_320, 49_152),
        ("Llama-3.2-3B", 114_688, 114_688),
        # Layouts with side streams.
        ("DeepSeek-V3.2", 61 * (1152 + 256), 61 * (1152 + 256)),
        ("GLM-5.1", 78 * (1152 + 256), 78 * (1152 + 256)),
        ("GLM-5.3", 78 * 1152 + 21 * 256, 78 * 1152 + 21 * 256),
        ("MiniMax-M3", 137_472, 137_472),
        # A token's own row in each layer, and its share of rows that several tokens share.
        ("DeepSeek-V4-Flash", 43 * 1024 + 6880, 6880),
        ("DeepSeek-V4-Pro", 61 * 1024 + 9848, 9848),
    ],
)
def test_further_models(name: str, inside: int, past: int):
    """As `kvik plan` and docs/models.md say it, and by hand for the growth."""
    kv = ask(name, 4096)["kv"]
    assert (kv["bytes_per_token"], kv["growth_bytes_per_token"]) == (inside, past)
    assert growth(preset_spec(name)) == past


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("Qwen3-Next-80B-A3B", 73.69),
        ("Qwen3.5-27B", 146.81),
        ("Qwen3.6-27B", 146.81),
        ("Nemotron-3-Nano-30B-A3B", 46.81),
        ("Jamba-v0.1", 8.31),
        ("Falcon-H1-34B", 146.11),
        ("Whisper-large-v3", 234.38),
        ("MiniMax-01", 280.0),
        ("LFM2-1.2B", 0.08),
        ("Kimi-Linear-48B", 41.41),
    ],
)
def test_fixed_state_of_a_sequence(name: str, mib: float):
    state = sum(layer.state_bytes for layer in preset_spec(name).layers)
    assert state / (1 << 20) == pytest.approx(mib, abs=0.006)


def test_deepseek_v4_pro_at_a_million_tokens():
    assert total(preset_spec("DeepSeek-V4-Pro"), 1 << 20) / (1 << 30) == pytest.approx(
        9.6246, abs=1e-4
    )


def test_latents_know_what_engines_expand_them_to():
    deepseek, minicpm = preset_spec("DeepSeek-R1"), preset_spec("MiniCPM3-4B")
    assert sum(2 * y.heads * sum(y.expanded or ()) for y in deepseek.layers) == 4_997_120
    assert sum(2 * y.heads * sum(y.expanded or ()) for y in minicpm.layers) == 793_600
    layer = deepseek.layers[0]
    assert (layer.k_dim, layer.v_dim, layer.rope_dim) == (576, 512, 64)


def test_the_decoder_layers_that_read_from_others():
    spec = preset_spec("Gemma-3n-E4B")
    assert [y.kind for y in spec.layers].count("shared") == 15
    # The last layers of each kind with a cache of their own are 18 (sliding) and 19 (full).
    assert {(y.source, y.window) for y in spec.layers if y.kind == "shared"} == {
        (18, 512),
        (19, None),
    }
    cla = preset_spec("Hunyuan-Large").layers
    assert [(y.kind, y.source) for y in cla[:3]] == [("full", None), ("shared", 0), ("full", None)]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B", "Llama-3.1-8B"),
        ("LLAMA_3.1_8B", "Llama-3.1-8B"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "Mistral-7B-v0.2"),
        ("google/gemma-3-4b-it", "Gemma-3-4B"),
        ("gemma3-270m", "Gemma-3-270M"),
        ("command-r+", "Command-R+"),
        ("gpt2", "GPT-2"),
    ],
)
def test_names_in_any_case_with_owner_and_suffix(written: str, name: str):
    assert ModelSpec.load(written).name == name


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("llama-3.1-9b", "Llama-3.1-8B"),
        ("qwen3-30b", "Qwen3-30B-A3B"),
        ("gpt-oss-20", "gpt-oss-20b"),
    ],
)
def test_an_unknown_name_brings_the_nearest(written: str, near: str):
    with pytest.raises(SpecError, match=f"did you mean .*{near}"):
        ModelSpec.load(written)


def test_a_version_is_never_dropped_from_a_name():
    for name in ("llama-3.9-8b", "mistral-7b", "qwen3-4b-2507", "", "a\nb\x00", "x" * 100_000):
        with pytest.raises(SpecError) as error:
            ModelSpec.load(name)
        assert len(str(error.value)) < 300
        assert str(error.value).isprintable()


def test_every_preset_reads_says_where_it_is_from_and_cannot_run():
    seen: dict[str, str] = {}
    for name, entry in presets().items():
        spec = preset_spec(name)
        assert spec.name == name
        assert spec.source == entry["source"]
        assert spec.unrunnable
        assert spec.context
        for other in (name, *entry.get("aliases", ())):
            assert preset_spec(other).name == name, f"{other} is taken by {seen.get(other)}"
            seen[other] = name


def test_presets_are_for_planning_only():
    with pytest.raises(SpecError, match="no such file"):
        load.load_spec("llama-3.1-8b")
