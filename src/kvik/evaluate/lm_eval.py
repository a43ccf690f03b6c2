"""The model class ``kvik`` of EleutherAI's lm-evaluation-harness: suites through a KV recipe.

What a score means is lm-eval's own business: how context and continuation are split, rolled over a
text, cut from the left, and where an answer ends are its functions or follow its class ``hf``
line by line, so that ``kv=fp32`` gives the scores of ``hf``. The K and V of every token go
through the recipe. Log-likelihoods share what requests have in common (`kvik.evaluate.scoring`),
answers run together in the engine. https://github.com/EleutherAI/lm-evaluation-harness
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from kvik import __version__
from kvik.engine.engine import Engine
from kvik.engine.request import Request, Sample
from kvik.engine.sampler import Sampling
from kvik.errors import KvikError
from kvik.evaluate.provenance import commit
from kvik.evaluate.scoring import Passage, Score, Work, score_passages
from kvik.models import load_model
from kvik.models.chat import ChatError, render
from kvik.plan import kv_bytes
from kvik.recipe import Recipe

NAME = "kvik"
LOG = logging.getLogger(__name__)
# Fields of Sampling that a task's generation_kwargs may set; None is lm-eval's "off".
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
TAG = "\ue000 "  # stands after a message that is to be continued


def register() -> None:
    """Make ``--model kvik`` known to lm-eval in this process."""
    if NAME not in model_registry:
        model_registry.register(NAME, target=f"{__name__}:KvikLM")


@dataclass
class Facts:
    """What happened to the requests so far, for the results file."""

    requests: Counter[str] = field(default_factory=Counter)
    truncated_requests: int = 0
    truncated_tokens: int = 0
    longest: int = 0
    scoring: Work = field(default_factory=Work)
    answering: Work = field(default_factory=Work)


@dataclass(frozen=True)
class Ask:
    """One request for an answer: what lm-eval gave, and what the engine is asked."""

    context: str
    options: dict[str, Any]
    until: list[str]
    request: Request


class KvikLM(TemplateLM):  # type: ignore[misc]
    """A model through one recipe; the arguments are those of ``--model_args``.

    ``pretrained``: a built-in name, a GGUF file, a folder or a repo id. ``kv``: the recipe.
    ``max_length``: tokens of context, the model's own if not given. ``max_gen_toks``: length of
    an answer where the task names none. ``batch_size``: answers that run together at most.
    ``memory``: bytes of K and V for them, as "512MiB"; a quarter of what is free if not given.
    ``seed``: of sampled answers. ``add_bos_token``, ``prefix_token_id``: as in lm-eval's ``hf``.
    ``dense``: unpack the weights to float32. ``device`` and ``max_batch_size`` are what lm-eval
    says to every model ("cuda:0" where nobody gave a device); kvik runs on the CPU.
    """

    def __init__(
        self,
        pretrained: str,
        kv: str | None = "fp16",
        *,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        batch_size: int | str | None = 1,
        memory: int | str | None = None,
        seed: int = 0,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        dense: bool = False,
        device: str | None = None,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise KvikError(
                f"--model_args of kvik have no {sorted(unknown)[0]!r}; a recipe with commas needs "
                'JSON: \'{"pretrained": "...", "kv": "sinks:4,positions=original+window:252"}\''
            )
        # lm-eval reads the word none, which is a recipe here, as Python's None.
        self.recipe = Recipe.parse("none" if kv is None else str(kv))
        for name, flag in (("add_bos_token", add_bos_token), ("dense", dense)):
            if flag is not None and not isinstance(flag, bool):
                raise KvikError(f"{name} is true or false, not {flag!r}")
        if max_length is not None:
            _positive(max_length, "max_length")
        self.max_gen_toks = _positive(max_gen_toks, "max_gen_toks")
        self.batch_size = _batch(batch_size)
        self.model = load_model(str(pretrained), dense=dense, context=max_length)
        self.plan = self.recipe.resolve(self.model.spec)
        self.tokenizer = self.model.tokenizer
        self.max_length = max_length or self.model.spec.context
        self.seed, self.add_bos_token = seed, add_bos_token
        self.facts = Facts()
        self._pretrained, self._prefix, self._memory = str(pretrained), prefix_token_id, memory
        self._dense = dense

    # Tokens

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        ids = self.tokenizer.eos_ids
        found = self.tokenizer.eos_id
        if found is None:
            found = min(ids, default=None)
        if found is None:
            raise KvikError("the model names no end of text: give prefix_token_id=...")
        return found

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text that has no context: the model's beginning, or its end."""
        if self._prefix is not None:
            return self._prefix
        bos = self.tokenizer.bos_id
        return self.eot_token_id if bos is None else bos

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Ids of a text, with the beginning-of-text token unless it is written there already."""
        bos = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None:
            prefix = self.tokenizer.decode([self.prefix_token_id], skip_special=False)
            bos = bos is not False and not string.startswith(prefix)
        return self.tokenizer.encode(string, bos=bool(bos))

    # Log-likelihoods

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """ln p of each continuation, and whether it is what the model would say."""
        if any(not request.args[1] for request in requests):
            raise KvikError("a continuation is empty: there is nothing to score")
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        passages = [self._passage(context, asked) for _, context, asked in requests]
        self._tell_truncated()
        found: dict[int, Score] = {}
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests")
        with bar:
            for score in score_passages(self.model, self.recipe, passages, self.facts.scoring):
                found[score.passage] = score
                key = requests[score.passage][0]
                if key is not None:  # None: a window of a rolling request
                    answer = (score.loglikelihood, score.greedy)
                    self.cache_hook.add_partial("loglikelihood", key, answer)
                bar.update()
        self.facts.requests["loglikelihood"] += sum(key is not None for key, _, _ in requests)
        return [(found[i].loglikelihood, found[i].greedy) for i in range(len(requests))]

    def _passage(self, context: list[int], asked: list[int]) -> Passage:
        """Cut from the left to what fits: the last token is never fed."""
        if not 0 < len(asked) <= self.max_length:
            raise KvikError(
                f"a continuation has {len(asked):,} tokens; from 1 to max_length "
                f"({self.max_length:,}) can be scored"
            )
        whole = (*context, *asked)
        return Passage(self._cut(whole, self.max_length + 1, fed=-1), len(asked))

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """ln p of whole texts, in windows that score each token once."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            for window in self._windows(request.args[0]):
                windows.append((None, *window))
                owners.append(index)
        totals = [0.0] * len(requests)
        scores = self._loglikelihood_tokens(windows, disable_tqdm)
        for owner, (value, _) in zip(owners, scores, strict=True):
            totals[owner] += value
        self.facts.requests["loglikelihood_rolling"] += len(requests)
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        return map(
            make_disjoint_window,
            get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            ),
        )

    # Answers

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers up to a stop string, an end token or a length; all run in one engine."""
        if not requests:
            return []
        seen: Counter[str] = Counter()
        asks = [self._ask(request.args[0], request.args[1], seen) for request in requests]
        self._tell_truncated()
        engine = Engine(self.model, self.recipe, memory=self._memory, max_running=self.batch_size)
        going = {engine.add(ask.request): i for i, ask in enumerate(asks)}
        samples = [Sample() for _ in asks]
        answers = [""] * len(asks)
        bar = tqdm(total=len(asks), disable=disable_tqdm, desc="Running generate_until requests")
        with bar:
            while engine.busy:
                for output in engine.step():
                    index = going[output.id]
                    samples[index].add(output)
                    if output.last:
                        answers[index] = self._answer(asks[index], samples[index])
                        bar.update()
        self.facts.requests["generate_until"] += len(asks)
        fed = (
            len(a.request.prompt) + len(s.tokens) - 1 for a, s in zip(asks, samples, strict=True)
        )
        self.facts.answering.asked += sum(fed)
        self.facts.answering.computed += engine.stats().computed
        return answers

    def _ask(self, context: str, options: dict[str, Any], seen: Counter[str]) -> Ask:
        """``seen`` counts equal requests: repeats of one draw anew, and still reproducibly."""
        wanted = dict(normalize_gen_kwargs(options, self.max_gen_toks))
        end = self.tokenizer.decode([self.eot_token_id], skip_special=False)
        until = [stop for stop in handle_stop_sequences(wanted.pop("until"), end) if stop]
        length = _positive(wanted.pop("max_gen_toks"), "max_gen_toks")
        if length >= self.max_length:
            raise KvikError(
                f"answers of {length:,} tokens leave no room for a prompt in max_length "
                f"({self.max_length:,}): give a smaller max_gen_toks"
            )
        key = repr((context, sorted(options.items(), key=repr)))
        seen[key] += 1
        # A special token is not in the text that the engine watches, so its id ends the answer.
        ends = {self.tokenizer.control[stop] for stop in until if stop in self.tokenizer.control}
        request = Request(
            tuple(self._cut(tuple(self.tok_encode(context)), self.max_length - length)),
            sampling=self._sampling(wanted),
            max_new=length,
            sample=seen[key] - 1,
            stop=tuple(stop for stop in until if stop not in self.tokenizer.control),
            eos_ids=frozenset(self.tokenizer.eos_ids | ends),
        )
        return Ask(context, options, until, request)

    def _sampling(self, wanted: dict[str, Any]) -> Sampling:
        draws = wanted.pop("do_sample")
        if wanted.pop("num_beams", 1) != 1:
            raise KvikError("num_beams is not supported through lm-eval: kvik samples or is greedy")
        unknown = sorted(wanted.keys() - set(SAMPLING))
        if unknown:
            known = ", ".join((*SAMPLING, "do_sample", "until", "max_gen_toks"))
            raise KvikError(f"generation_kwargs of kvik have no {unknown[0]!r}; they have {known}")
        given = {name: value for name, value in wanted.items() if value is not None}
        if not draws:
            return Sampling(repetition_penalty=given.get("repetition_penalty", 1.0))
        if not given.get("temperature"):
            raise KvikError("do_sample without a temperature over 0: give one in gen_kwargs")
        return Sampling(**{"seed": self.seed, **given})

    def _answer(self, ask: Ask, sample: Sample) -> str:
        if sample.finish == "error":
            raise KvikError(f"an answer failed: {sample.reason}")
        tokens = sample.tokens[:-1] if sample.finish == "eos" else sample.tokens
        text = postprocess_generated_text(self.tokenizer.decode(tokens), ask.until, None)
        self.cache_hook.add_partial("generate_until", (ask.context, ask.options), text)
        return str(text)

    # Chats

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval's cache of requests knows the tokenizer by."""
        return self._pretrained.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's own template; it has no others by name."""
        if chat_template is False:
            return None
        if isinstance(chat_template, str) and chat_template != "default":
            raise KvikError(f"the model has no chat template named {chat_template!r}")
        if self.model.chat_template is None:
            raise KvikError("the model has no chat template: leave --apply_chat_template out")
        return self.model.chat_template

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a chat. Without a generation prompt its last message is to be continued.

        A template that refuses a system message gets the chat without it, as in ``hf``.
        """
        try:
            return self._render(chat_history, add_generation_prompt)
        except ChatError:
            plain = [message for message in chat_history if message["role"] != "system"]
            if len(plain) == len(chat_history):
                raise
            LOG.warning("the chat template refuses a system message: it is left out")
            return self._render(plain, add_generation_prompt)

    def _render(self, messages: list[dict[str, str]], opens: bool) -> str:
        template = self.chat_template(True)
        assert template is not None
        names = {index: text for text, index in self.tokenizer.control.items()}
        if not opens:
            last = messages[-1]
            messages = [*messages[:-1], {**last, "content": last["content"] + TAG}]
        bos, eos = self.tokenizer.bos_id, self.tokenizer.eos_id
        text = render(
            template,
            messages,
            bos_token=None if bos is None else names.get(bos),
            eos_token=None if eos is None else names.get(eos),
            add_generation_prompt=opens,
        )
        if opens:
            return text
        before, tag, after = text.rpartition(TAG.strip())
        if not tag:
            raise ChatError("the chat template does not show the message that is to be continued")
        # A template that trims messages has taken the blank after the tag away.
        return before if after.startswith(" ") else before.rstrip()

    # What is told

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into the ``config`` of its results."""
        facts, spec = self.facts, self.model.spec
        longest = max(facts.longest, 1)
        return {
            "model_num_parameters": spec.params.total if spec.params else -1,
            "kvik": {
                "version": __version__,
                "commit": commit(),
                "model": self._pretrained,
                "model_identity": self.model.identity.hex(),
                "weights": "float32" if self._dense else "as in the file",
                "recipe": str(self.recipe),
                "recipe_digest": self.recipe.digest,
                "max_length": self.max_length,
                "requests": dict(facts.requests),
                "truncated_requests": facts.truncated_requests,
                "truncated_tokens": facts.truncated_tokens,
                "longest_request_tokens": facts.longest,
                "kv_bytes_of_longest_request": kv_bytes(self.plan, longest).total,
                "scoring_tokens_asked": facts.scoring.asked,
                "scoring_tokens_computed": facts.scoring.computed,
                "answering_tokens_asked": facts.answering.asked,
                "answering_tokens_computed": facts.answering.computed,
            },
        }

    def _cut(self, ids: tuple[int, ...], most: int, *, fed: int = 0) -> tuple[int, ...]:
        """The last ``most`` ids; counts what is lost, and the longest that is fed."""
        lost = max(len(ids) - most, 0)
        self.facts.truncated_requests += lost > 0
        self.facts.truncated_tokens += lost
        self.facts.longest = max(self.facts.longest, len(ids) - lost + fed)
        return ids[lost:]

    def _tell_truncated(self) -> None:
        if self.facts.truncated_requests:
            LOG.warning(
                "so far %d requests were longer than fits max_length %d and lost %d tokens in all "
                "from the left",
                self.facts.truncated_requests,
                self.max_length,
                self.facts.truncated_tokens,
            )


def _positive(value: Any, name: str) -> int:
    if type(value) is not int or value < 1:
        raise KvikError(f"{name} is {value!r}; it must be a whole number over 0")
    return value


def _batch(value: int | str | None) -> int:
    """lm-eval's ``auto`` lets the memory decide."""
    if value is None or str(value).startswith("auto"):
        return 256
    return _positive(int(value) if str(value).isdigit() else value, "batch_size")
