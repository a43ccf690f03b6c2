"""Suites of lm-eval through a recipe: its own scores for fp32, other ones for what is broken."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tomllib
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvik.errors import KvikError

pytest.importorskip("lm_eval")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages that it brings along
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from kvik.evaluate.lm_eval import KvikLM, register

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).resolve().parents[2]
WORDS = ["cat", "dog", "sun", "moon", "tree", "river", "stone", "cloud", "bird", "fish"]
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: {kind}
"""
CHOICE = """doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
target_delimiter: ""
metric_list: [{metric: acc}]
"""
ANSWER = """doc_to_text: "{{question}}"
doc_to_target: "{{choices[0]}}"
generation_kwargs: {until: ["I", "zz"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""
ROLLING = """doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: byte_perplexity}]
"""


@pytest.fixture(scope="module", autouse=True)
def _offline() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        register()
        yield


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks over one local file; one question is longer than the context of the model."""
    folder = tmp_path_factory.mktemp("tasks")
    draw = random.Random(0)
    rows = [
        {
            "question": " ".join(draw.choices(WORDS, k=count)),
            "choices": [" " + " ".join(draw.sample(WORDS, 2)) for _ in range(4)],
            "label": draw.randrange(4),
        }
        for count in (5, 9, 30, 70)
    ]
    data = folder / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    bodies = {
        "multiple_choice": CHOICE,
        "generate_until": ANSWER,
        "loglikelihood_rolling": ROLLING,
    }
    for kind, body in bodies.items():
        head = TASK.format(name=f"local_{kind}", data=data, kind=kind)
        (folder / f"{kind}.yaml").write_text(head + body)
    return folder


def _evaluate(tasks: Path, model: str, names: list[str] | None = None, **args: Any) -> Any:
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    kinds = names or ["multiple_choice", "generate_until", "loglikelihood_rolling"]
    return simple_evaluate(
        model=model,
        model_args=args,
        tasks=[f"local_{kind}" for kind in kinds],
        task_manager=manager,
        batch_size=1 if model == "hf" else 4,
        device="cpu",
        bootstrap_iters=0,
        log_samples=True,
    )


def _answers(results: Any, kind: str) -> list[list[Any]]:
    samples = sorted(results["samples"][f"local_{kind}"], key=lambda s: s["doc_id"])
    return [sample["resps"] for sample in samples]


@pytest.mark.slow
def test_fp32_gives_what_hf_gives(tasks: Path, tiny_base_model: Path) -> None:
    """Every log-likelihood to 1e-3, every greedy flag and answer; contexts cut from the left."""
    theirs = _evaluate(tasks, "hf", pretrained=str(tiny_base_model), dtype="float32")
    ours = _evaluate(tasks, "kvik", pretrained=str(tiny_base_model), kv="fp32")
    pairs = [_answers(results, "multiple_choice") for results in (ours, theirs)]
    for mine, other in zip(*pairs, strict=True):
        for ((a, a_greedy),), ((b, b_greedy),) in zip(mine, other, strict=True):
            assert a == pytest.approx(b, abs=1e-3)
            assert a_greedy == b_greedy
    assert _answers(ours, "generate_until") == _answers(theirs, "generate_until")
    rolling = [_answers(results, "loglikelihood_rolling") for results in (ours, theirs)]
    for ((a,),), ((b,),) in zip(*rolling, strict=True):
        assert a == pytest.approx(b, abs=1e-3)
    for task, figures in theirs["results"].items():
        for name, value in figures.items():
            if isinstance(value, float):
                assert ours["results"][task][name] == pytest.approx(value, rel=1e-6)
    facts = ours["config"]["kvik"]
    assert facts["recipe"] == "fp32"
    assert facts["truncated_requests"] == 5  # four answers to the longest question, and the prompt
    assert facts["scoring_tokens_computed"] < facts["scoring_tokens_asked"]


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["fp32+window:4", "int4+window:8"])
def test_a_recipe_that_drops_what_matters_changes_the_scores(
    tasks: Path, tiny_base_model: Path, broken: str
) -> None:
    kinds = ["multiple_choice", "loglikelihood_rolling"]
    whole, cut = (
        _evaluate(tasks, "kvik", kinds, pretrained=str(tiny_base_model), kv=kv)
        for kv in ("fp32", broken)
    )
    assert (
        max(
            abs(a[0] - b[0])
            for mine, other in zip(_answers(whole, kinds[0]), _answers(cut, kinds[0]), strict=True)
            for (a,), (b,) in zip(mine, other, strict=True)
        )
        > 1
    )
    name = "byte_perplexity,none"
    a, b = (r["results"]["local_loglikelihood_rolling"][name] for r in (whole, cut))
    assert abs(a / b - 1) > 1e-2


@pytest.mark.slow
def test_the_command_runs_suites(tasks: Path, tiny_base_model: Path, tmp_path: Path) -> None:
    """The real command line of lm-eval in a process of its own, on data from a local file."""
    command = [sys.executable, "-m", "kvik.commands.lm_eval", "--model", "kvik", "--model_args"]
    command += [f"pretrained={tiny_base_model},kv=int8/int4", "--batch_size", "4"]
    command += ["--tasks", "local_multiple_choice,local_generate_until"]
    command += ["--include_path", str(tasks), "--output_path", str(tmp_path), "--log_samples"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "local_multiple_choice" in done.stdout
    (file,) = tmp_path.glob("*/results_*.json")
    results = json.loads(file.read_text())
    assert results["config"]["kvik"]["recipe"] == "int8/int4"
    assert results["config"]["kvik"]["requests"] == {"loglikelihood": 16, "generate_until": 4}
    assert {"local_multiple_choice", "local_generate_until"} == results["results"].keys()
    same = _evaluate(
        tasks, "kvik", ["multiple_choice"], pretrained=str(tiny_base_model), kv="int8/int4"
    )
    name = "local_multiple_choice"
    assert results["results"][name]["acc,none"] == same["results"][name]["acc,none"]


def test_later_versions_of_lm_eval_find_the_class() -> None:
    """They read this entry point; that of the console script is beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["lm_eval.models"]["kvik"].partition(":")
    assert getattr(import_module(module), name) is KvikLM
    module, _, name = project["scripts"]["kvik-lm-eval"].partition(":")
    assert callable(getattr(import_module(module), name))


# The class itself


def _request(*args: Any) -> SimpleNamespace:
    return SimpleNamespace(args=args)


@pytest.fixture(scope="module")
def chatty(tiny_model: Path) -> KvikLM:
    return KvikLM(str(tiny_model), kv="fp32", batch_size=8)


def _generate(lm: KvikLM, *asked: tuple[str, dict[str, Any]]) -> list[str]:
    return lm.generate_until([_request(*one) for one in asked], disable_tqdm=True)


DRAW = {"do_sample": True, "temperature": 1.5, "max_gen_toks": 12, "until": []}


def test_samples_repeat_by_seed_whatever_runs_beside_them(chatty: KvikLM, tiny_model: Path) -> None:
    first = _generate(chatty, ("cat", DRAW), ("dog", DRAW), ("cat", DRAW))
    assert first[0] != first[2]  # a repeat of the same request draws anew
    alone = KvikLM(str(tiny_model), kv="fp32", batch_size=1)
    assert _generate(alone, ("dog", DRAW), ("cat", DRAW)) == [first[1], first[0]]
    other = KvikLM(str(tiny_model), kv="fp32", batch_size=1, seed=1)
    assert _generate(other, ("cat", DRAW)) != first[:1]
    assert _generate(alone, ("cat", {**DRAW, "seed": 1})) == _generate(other, ("cat", DRAW))


def test_nothing_to_score_is_refused(chatty: KvikLM) -> None:
    for context in ("", "cat"):
        with pytest.raises(KvikError, match="a continuation is empty"):
            chatty.loglikelihood([SimpleNamespace(args=(context, ""))])


def test_an_answer_ends_before_the_stop_string(chatty: KvikLM) -> None:
    (whole,) = _generate(chatty, ("river", {**DRAW, "max_gen_toks": 30}))
    stop = whole[4:6]
    (cut,) = _generate(chatty, ("river", {**DRAW, "max_gen_toks": 30, "until": [stop]}))
    assert cut == whole[: whole.index(stop)]


def test_a_special_token_ends_an_answer(chatty: KvikLM) -> None:
    """It is not in the text, yet lm-eval's tasks name it to stop at."""
    asked = chatty._ask("cat", {"until": ["<|im_start|>", "\n"]}, Counter())
    assert asked.request.stop == ("\n",)
    assert asked.request.eos_ids == {256, 257}


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("content", ["Hello there", "The answer is "])
def test_chats_are_those_of_transformers(
    chatty: KvikLM, tiny_model: Path, opens: bool, content: str
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tiny_model))
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    if not opens:
        chat.append({"role": "assistant", "content": content})
    theirs = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=opens, continue_final_message=not opens
    )
    ours = chatty.apply_chat_template(chat, add_generation_prompt=opens)
    assert ours == theirs
    assert chatty.tok_encode(ours) == tokenizer.encode(theirs)
    assert chatty.chat_template(True) == tokenizer.chat_template
    assert chatty.tokenizer_name.endswith("tiny")
    assert "/" not in chatty.tokenizer_name


def test_a_template_without_a_system_role_gets_the_rest(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    refuse = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    settings["chat_template"] = refuse + settings["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    lm = KvikLM(str(tmp_path))
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert lm.apply_chat_template(chat) == lm.apply_chat_template(chat[1:])


def test_the_empty_context_and_the_empty_text(chatty: KvikLM, tiny_model: Path) -> None:
    (found,) = chatty.loglikelihood([_request("", "cat")], disable_tqdm=True)
    (same,) = chatty.loglikelihood_rolling([_request("cat")], disable_tqdm=True)
    assert found[0] == pytest.approx(same, abs=1e-4)
    assert chatty.loglikelihood_rolling([_request("")], disable_tqdm=True) == [0.0]
    assert chatty.generate_until([]) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"kw": "int8"}, "'kw'"),
        ({"kv": "int8+nonsense"}, "nonsense"),
        ({"max_length": -3}, "max_length is -3"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"add_bos_token": "maybe"}, "add_bos_token is true or false, not 'maybe'"),
        ({"add_bos_token": 0}, "add_bos_token is true or false, not 0"),
        ({"dense": "no"}, "dense is true or false, not 'no'"),
        ({"max_gen_toks": "x"}, "max_gen_toks is 'x'"),
    ],
)
def test_arguments_that_make_no_sense(tiny_model: Path, args: dict[str, Any], words: str) -> None:
    with pytest.raises(KvikError, match=words):
        KvikLM(str(tiny_model), **args)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"do_sample": True}, "do_sample without a temperature"),
        ({"num_beams": 4}, "num_beams"),
        ({"penalty_alpha": 0.6}, "penalty_alpha"),
        ({"max_gen_toks": 9999}, "no room for a prompt"),
        ({"do_sample": True, "temperature": 1.0, "top_p": 7}, "top_p"),
    ],
)
def test_options_that_make_no_sense(chatty: KvikLM, options: dict[str, Any], words: str) -> None:
    with pytest.raises(KvikError, match=words):
        _generate(chatty, ("cat", {"until": [], **options}))


def test_a_continuation_that_cannot_be_scored(tiny_base_model: Path) -> None:
    lm = KvikLM(str(tiny_base_model), kv=None, max_length=16)
    assert str(lm.recipe) == "none"  # lm-eval's command line turns the word into None
    with pytest.raises(KvikError, match="17 tokens"):
        lm.loglikelihood([_request("cat", "x" * 17)], disable_tqdm=True)
    with pytest.raises(KvikError, match="no chat template"):
        lm.chat_template(True)


@pytest.mark.slow
@pytest.mark.model
def test_a_cache_that_forgets_the_question_loses_the_score(tmp_path: Path) -> None:
    """A number is told, then other things, then asked for among four: a real model knows it."""
    draw = random.Random(3)
    rows = []
    for _ in range(4):
        codes = [str(draw.randrange(10_000, 100_000)) for _ in range(4)]
        label = draw.randrange(4)
        told = f"The code of the blue door is {codes[label]}. Remember it."
        idle = "The garden was quiet and the rain had stopped. Nobody was at home that day. " * 2
        question = f"{told} {idle}The code of the blue door is"
        rows.append({"question": question, "choices": [f" {c}" for c in codes], "label": label})
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    head = TASK.format(name="local_code", data=data, kind="multiple_choice")
    (tmp_path / "code.yaml").write_text(head + CHOICE)
    scores = {
        kv: _evaluate(tmp_path, "kvik", ["code"], pretrained="smollm2-135m", kv=kv)["results"][
            "local_code"
        ]["acc,none"]
        for kv in ("fp32", "int8/int4", "int8+sinks:4+window:28")
    }
    assert scores["fp32"] == scores["int8/int4"] == 1
    assert scores["int8+sinks:4+window:28"] <= 0.5


def test_a_recipe_that_lm_eval_cut_at_its_comma_is_told_of_json() -> None:
    """`kv=sinks:4,positions=original+window:252` arrives as two arguments."""
    with pytest.raises(KvikError, match=r"no 'positions'; a recipe with commas needs JSON"):
        KvikLM("tiny", kv="sinks:4", positions="original+window:252")


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_length", 0), ("max_gen_toks", 0), ("max_gen_toks", None), ("batch_size", 0)],
)
def test_lengths_are_judged_before_a_model_is_fetched(name: str, value: Any) -> None:
    with pytest.raises(KvikError, match=f"{name} is {value}; it must be a whole number over 0"):
        KvikLM("nobody/nothing", **{name: value})
