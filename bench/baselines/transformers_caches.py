"""Worker: transformers in float32, its full cache and its QuantizedCache with quanto and hqq.

Prefill attends to K and V that are not quantized yet: that is how this cache works.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from logits import Out
from transformers import AutoModelForCausalLM, DynamicCache, QuantizedCache
from wire import answer_all

BATCH = 8


class Transformers:
    """One model, read from a GGUF file or a folder."""

    _prompt: list[int] | None = None

    def open(self, *, model: str, threads: int) -> dict[str, Any]:
        """Loads the model and says which versions do the work."""
        torch.set_num_threads(threads)
        path = Path(model)
        place = (path,) if path.is_dir() else (path.parent,)
        more = {} if path.is_dir() else {"gguf_file": path.name}
        self.model = AutoModelForCausalLM.from_pretrained(
            *place, **more, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        names = ("transformers", "torch", "optimum-quanto", "hqq")
        return {"versions": {name: _version(name) for name in names}}

    @property
    def _token_elements(self) -> int:
        config = self.model.config
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * config.num_key_value_heads * dim)

    def _cache(self, ids: list[int], settings: dict[str, Any]) -> Any:
        """A cache after a prompt, as the model itself would leave it.

        What prefill hands over is the same for every cache, so it is computed once a prompt.
        """
        config = self.model.config
        if ids != self._prompt:
            self._dense, self._prompt = DynamicCache(config=config), ids
            asked = {"input_ids": torch.tensor([ids]), "past_key_values": self._dense}
            self.model(**asked, logits_to_keep=1)
        kept = QuantizedCache(config=config, **settings) if settings else DynamicCache()
        for i, layer in enumerate(self._dense.layers):
            kept.update(layer.keys, layer.values, i)
        return kept

    def _out(self, path: str, rows: int) -> Out:
        return Out(path, rows, self.model.config.vocab_size)

    @torch.inference_mode()
    def forced(
        self, *, ids: list[int], context: int, chunk: int, cache: dict[str, Any], out: str
    ) -> dict[str, Any]:
        """Logits after each token behind the context; bytes of K and V after the context."""
        kept, text = self._cache(ids[:context], cache), torch.tensor([ids])
        found = {"bytes": _cache_bytes(kept), "elements": context * self._token_elements}
        rows = self._out(out, len(ids) - context)
        for low in range(context, len(ids), chunk):
            part = text[:, low : low + chunk]
            rows.add(self.model(input_ids=part, past_key_values=kept).logits[0].numpy())
        rows.close()
        return found | {"bytes_after": _cache_bytes(kept)}

    @torch.inference_mode()
    def streamed(self, *, ids: list[int], cache: dict[str, Any], out: str) -> dict[str, Any]:
        """Logits after every token; a window and sinks are masks over the full cache.

        Positions stay what they are in the text.
        """
        kept, rows = DynamicCache(config=self.model.config), self._out(out, len(ids))
        for low in range(0, len(ids), 256):
            part = torch.tensor([ids[low : low + 256]])
            seen = visible(low, part.shape[1], cache.get("window"), cache.get("sinks", 0))
            mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            answer = self.model(
                input_ids=part, past_key_values=kept, attention_mask=mask[None, None]
            )
            rows.add(answer.logits[0].numpy())
        rows.close()
        return {"bytes": _cache_bytes(kept)}

    @torch.inference_mode()
    def recomputed(self, *, ids: list[int], at: list[int], budget: int, out: str) -> dict[str, Any]:
        """Logits after each position of ``at`` from its newest ``budget`` tokens alone."""
        rows = self._out(out, len(at))
        for low in range(0, len(at), BATCH):
            parts = [ids[i - budget + 1 : i + 1] for i in at[low : low + BATCH]]
            answer = self.model(input_ids=torch.tensor(parts), use_cache=False, logits_to_keep=1)
            rows.add(answer.logits[:, -1].numpy())
        rows.close()
        return {}


def visible(start: int, count: int, window: int | None, sinks: int) -> torch.Tensor:
    """What ``count`` queries from ``start`` on see of all tokens: bool ``[count, start + count]``.

    A window has ``window`` tokens, the query's own included.
    """
    query, key = torch.arange(start, start + count)[:, None], torch.arange(start + count)
    seen = key <= query
    return seen if window is None else seen & ((query - key < window) | (key < sinks))


def _cache_bytes(cache: Any) -> int:
    names = ("_quantized_keys", "_quantized_values", "keys", "values")
    return sum(held_bytes(getattr(layer, name, None)) for layer in cache.layers for name in names)


def held_bytes(value: Any) -> int:
    """Bytes of the tensors that a value is made of: codes, scales and zero points alike."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            return sum(held_bytes(getattr(value, name)) for name in value.__tensor_flatten__()[0])
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(held_bytes, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(held_bytes, value))
    return 0


def _version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    system = Transformers()
    names = ("open", "forced", "streamed", "recomputed")
    answer_all({name: getattr(system, name) for name in names})
