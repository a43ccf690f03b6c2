"""Recipe text: parsing, canonical printing, digests, and what is said about bad text."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import shlex
import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tracers

from kvik.errors import RecipeError
from kvik.recipe import Amount, Codec, Pair, Recipe, Scope, Slot, Stage, arg
from kvik.recipe.stage import REGISTRY, load_stages
from kvik.stages.floats import Float
from kvik.stages.ints import Int
from kvik.stages.sinks import Sinks
from kvik.stages.window import Window

assert tracers.Heavy.names  # importing them registered them


@dataclass(frozen=True)
class Every(Stage):
    """One argument of every kind, so that the grammar is tested beyond today's stages."""

    slot = Slot.BUDGET
    names: ClassVar = {"every": {"kind": "a"}, "other": {"kind": "b"}}

    budget: Amount = arg(positional=True)  # noqa: RUF009 (arg makes a dataclass field)
    kind: str = arg("a", choices=("a", "b"))
    tokens: int = arg(7, positional=True, minimum=-3, maximum=99)
    rate: float = arg(0.5, minimum=-2, maximum=1000)
    on: bool = arg(True)
    off: bool = arg(False)
    file: str = arg("none")


shares = st.integers(0, 100 * 10**9).map(lambda n: Amount(Fraction(n, 100 * 10**9), share=True))
amounts = st.one_of(shares, st.integers(0, 10**9 - 1).map(lambda n: Amount(Fraction(n))))
words = st.from_regex(r"[A-Za-z0-9_.%-]{1,8}", fullmatch=True)


def values(kind: Any, rules: Any) -> st.SearchStrategy[Any]:
    """Any legal value of an argument."""
    if "choices" in rules:
        return st.sampled_from(rules["choices"])
    low, high = rules.get("minimum", -(10**9) + 1), rules.get("maximum", 10**9 - 1)
    billionths = st.integers(int(low * 10**9), int(high * 10**9))
    return {
        bool: st.booleans(),
        int: st.integers(low, high),
        float: billionths.map(lambda n: float(f"{n / 10**9:.9f}")),
        Amount: amounts,
        str: words,
    }[kind]


@st.composite
def stages(draw: st.DrawFn, kind: type[Stage] = Stage) -> Stage:
    """Any registered stage with any legal arguments."""
    names = sorted(n for n, cls in load_stages().items() if issubclass(cls, kind))
    name = draw(st.sampled_from(names))
    cls = load_stages()[name]
    fixed, hints = cls.names[name], get_type_hints(cls)
    given_here = {
        f.name: draw(values(hints[f.name], f.metadata))
        for f in dataclasses.fields(cls)
        if f.name not in fixed and (f.default is dataclasses.MISSING or draw(st.booleans()))
    }
    return cls(**fixed, **given_here)


codecs: st.SearchStrategy[Any] = stages(Codec)
pairs = st.builds(Pair, codecs, codecs)
layers = st.integers(-200, 200)
ranges = st.tuples(layers, layers).filter(lambda r: (r[0] < 0) != (r[1] < 0) or r[0] <= r[1])
scopes = st.one_of(st.just(Scope()), st.lists(ranges, max_size=3).map(lambda r: Scope(tuple(r))))
placed = st.tuples(st.one_of(stages(), pairs), scopes)
recipes = st.lists(placed, min_size=1, max_size=5).map(lambda p: Recipe(tuple(p)))


@settings(max_examples=100, deadline=None)
@given(recipes)
def test_text_and_object_say_the_same(recipe: Recipe) -> None:
    text = str(recipe)
    assert Recipe.parse(text) == recipe
    assert str(Recipe.parse(text)) == text
    assert Recipe.parse(text).digest == recipe.digest
    assert shlex.quote(text) == text, "needs no quotes in a shell"


@settings(max_examples=60, deadline=None)
@given(recipes, st.randoms())
def test_order_does_not_matter(recipe: Recipe, chance: Any) -> None:
    parts = str(recipe).split("+")
    chance.shuffle(parts)
    again = Recipe.parse("+".join(parts))
    assert again == recipe
    assert str(again) == str(recipe)


@settings(max_examples=60, deadline=None)
@given(recipes, recipes)
def test_digests_differ_exactly_when_the_text_does(a: Recipe, b: Recipe) -> None:
    assert (a.digest == b.digest) == (str(a) == str(b)) == (a == b)
    assert re.fullmatch(r"[0-9a-f]{64}", a.digest)


alphabet = "int8fp64sinkwo:+/@,=-%.0123 \n\x00é٣²½\ud800"
pieces = st.sampled_from(
    [
        "int8",
        "int4",
        "sinks",
        "window",
        "page",
        "every",
        "group",
        "range",
        "positions",
        "20%",
        "0",
        "7",
        "99999999999",
        "sym",
        "yes",
        "nan",
        ":",
        "+",
        "/",
        "@",
        ",",
        "=",
        "-",
        ".",
        "%",
        "٣",
        "\n",
        "\x00",
        ",,",
    ]
)
noise = st.one_of(
    st.text(max_size=60),
    st.text(alphabet, max_size=60),
    st.lists(pieces, max_size=12).map("".join),
)


@settings(max_examples=500, deadline=None)
@given(noise)
def test_any_text_parses_or_names_a_column(text: str) -> None:
    try:
        recipe = Recipe.parse(text)
    except RecipeError as error:
        message = str(error)
        assert "\n" not in message
        assert "\0" not in message
        column = re.search(r"column (\d+): .", message)
        assert column, message
        assert 1 <= int(column[1]) <= len(text) + 1
    else:
        assert Recipe.parse(str(recipe)) == recipe
        assert str(recipe).isascii()


@pytest.mark.parametrize(
    "text",
    [
        "int8+" * 819 + "x",
        "a" * 4096,
        "window:" + "9" * 4000,
        "int8:" + ",".join(["group=1"] * 500),
        "/" * 4096,
        "int8@" + ",".join(["1"] * 2000),
        "every:" + "0" * 2000 + ".1%",
        "+" * 10_000_000,
        "int8" * 1_000_000,
    ],
    ids=lambda text: f"{text[:12]}...{len(text)}",
)
def test_long_text_is_answered_at_once(text: str) -> None:
    start = time.perf_counter()
    with contextlib.suppress(RecipeError):
        Recipe.parse(text)
    assert time.perf_counter() - start < 2


def test_a_message_stays_one_line() -> None:
    for text in ("a" * 4096, "window:" + "9" * 4000, "int8@" + "9" * 4000):
        with pytest.raises(RecipeError) as caught:
            Recipe.parse(text)
        assert len(str(caught.value)) < 1000


MALFORMED = [
    ("", 1, "empty"),
    ("int8+", 6, "a stage name is missing"),
    ("+int8", 1, "a stage name is missing"),
    ("int8++int4", 6, "a stage name is missing"),
    ("int8/", 6, "a stage name is missing"),
    ("/int8", 1, "a stage name is missing"),
    ("it8", 1, "did you mean 'int8'?"),
    ("int4+windwo:8", 6, "did you mean 'window'?"),
    ("int8/itn4", 6, "did you mean 'int4'?"),
    ("INT8", 1, "did you mean 'int8'?"),
    ("int8 ", 1, "did you mean 'int8'?"),
    ("zzz", 1, "known: "),
    ("int8:", 6, "has a colon but no argument"),
    ("int8:group", 6, "did you mean group=...?"),
    ("int8:gruop=4", 6, "nearest: group"),
    ("int8:zzz=4", 6, "known: group, range"),
    ("none:zzz=4", 6, "known: none"),
    ("int8:group=", 12, "'' is no whole number"),
    ("int8:group=4.0", 12, "'4.0' is no whole number"),
    ("int8:group=0x10", 12, "'0x10' is no whole number"),
    ("int8:group=1_0", 12, "'1_0' is no whole number"),
    ("int8:group=٣", 12, "'٣' is no whole number"),
    ("int8:group=-1", 12, "must be at least 0, not -1"),
    ("int8:group=1,group=2", 14, "'group' is given twice"),
    ("int8:range=wide", 12, "range: one of auto, sym, asym, not 'wide'"),
    ("int8:bits=4", 6, "unknown argument 'bits'"),
    ("int8:4", 6, "unexpected argument '4'"),
    ("sinks", 6, "'sinks' needs tokens; write sinks:N"),
    ("sinks:4,5", 9, "unexpected argument '5'"),
    ("sinks:,4", 7, "'' is no whole number"),
    ("sinks:4,", 9, "unexpected argument ''"),
    ("sinks:0", 7, "must be at least 1, not 0"),
    ("sinks:4,positions=true", 19, "one of cache, original, not 'true'"),
    ("sinks:9999999999", 7, "more than 9 digits"),
    ("page:4097", 6, "must be at most 4096, not 4097"),
    ("int8/int4/int4", 11, "write int8/int4"),
    ("window:8/int4", 1, "only codecs come in pairs"),
    ("int8@", 6, "'' is no layer or range; write 3, 0-5 or -1"),
    ("int8@x", 6, "'x' is no layer or range"),
    ("int8@1,", 6, "'' is no layer or range"),
    ("int8@0@1", 6, "'0@1' is no layer or range"),
    ("int8@5-2", 6, "range '5-2' runs backwards"),
    ("int8@-1--2", 6, "range '-1--2' runs backwards"),
    ("int8@٣", 6, "'٣' is no layer or range"),
    ("every", 6, "'every' needs budget"),
    ("every:20%%", 7, "'20%%' is neither a number of tokens nor a share"),
    ("every:101%", 7, "101% is not between nothing and everything"),
    ("every:1.5", 7, "'1.5' is no number of tokens; write 512, or 20%"),
    ("every:5,off=true", 13, "write yes or no, not 'true'"),
    ("every:5,rate=1e3", 14, "'1e3' is no number"),
    ("every:5,rate=nan", 14, "'nan' is no number"),
    ("every:5,file=a b", 14, "'a b' is no word"),
]


@pytest.mark.parametrize(("text", "column", "words"), MALFORMED)
def test_bad_text_is_explained_at_its_column(text: str, column: int, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.parse(text)
    message = str(caught.value)
    assert f"column {column}: " in message
    assert words in message
    assert text in message or not text or repr(text) in message


def test_python_and_text_are_one() -> None:
    assert Recipe.parse("int8+window:2044+sinks:4") == Int(8) + Window(2044) + Sinks(4)
    assert Sinks(4) + (Window(2044) + Int(8)) == Int(8) + Window(2044) + Sinks(4)
    scoped = Float("float16") @ "0-1,-1" + Int(4)
    assert scoped == Recipe.parse("int4+fp16@0-1,-1")
    assert str(scoped) == "fp16@0-1,-1+int4"
    assert Recipe.parse(scoped) is scoped


def test_equal_halves_are_no_pair() -> None:
    assert Recipe.parse("int8/int8") == Recipe.parse("int8") == Recipe.of(Pair(Int(8), Int(8)))
    assert str(Recipe.parse("int4:group=32/int4:group=32@1")) == "int4:group=32@1"
    assert str(Recipe.parse("int8/int4:range=sym")) == "int8/int4:range=sym"


def test_defaults_are_not_printed() -> None:
    assert str(Recipe.parse("page:32+sinks:tokens=4,positions=cache+int8:range=auto,group=0")) == (
        "int8+sinks:4+page"
    )
    assert str(Recipe.parse("every:20.50%,on=yes,off,rate=-0,007")) == "every:20.5%,rate=0,off"
    assert str(Recipe.parse("other:5,tokens=-3,on=no")) == "other:5,-3,on=no"


def test_canonical_order_is_by_slot() -> None:
    text = "page:16+window:9+sinks:2+int4+int8@0"
    assert str(Recipe.parse(text)) == "int8@0+int4+sinks:2+window:9+page:16"


@pytest.mark.parametrize(
    ("text", "tokens", "want"),
    [("512", 10_000, 512), ("20%", 1000, 200), ("33.333333333%", 3 * 10**9, 999_999_999),
     ("0.000000001%", 10**11, 1), ("100%", 7, 7), ("0%", 7, 0), ("12.5%", 15, 1)],
)  # fmt: skip
def test_amounts_are_exact(text: str, tokens: int, want: int) -> None:
    assert Amount.parse(text).of(tokens) == want


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "-1",
        "1e3",
        ".5%",
        "5.%",
        "1.5",
        "٣",
        "1.٣%",
        "1.²%",
        "100.1%",
        "1.0000000001%",
        "9" * 10,
    ],
)
def test_amounts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"%|tokens"):
        Amount.parse(text)


def test_python_refuses_what_text_cannot_say() -> None:
    for make in (
        lambda: Window(10**9),
        lambda: Every(budget=Amount(Fraction(1)), rate=float("inf")),
        lambda: Every(budget=Amount(Fraction(1)), rate=1e-12),
        lambda: Every(budget=Amount(Fraction(1)), file="a/b"),
        lambda: Every(budget=Amount(Fraction(1)), file="a+b"),
        lambda: Sinks(0),
        lambda: Int(5),
        lambda: Pair(Pair(Int(8), Int(4)), Int(8)),
        lambda: Recipe(()),
        lambda: Int(8) @ "1-0",
    ):
        with pytest.raises(RecipeError):
            make()
    for share in (Fraction(1, 3), Fraction(-1, 10), Fraction(11, 10)):
        with pytest.raises(ValueError):
            Amount(share, share=True)


def test_two_stages_cannot_have_one_name() -> None:
    with pytest.raises(RecipeError, match="two stages are called 'int8'"):

        @dataclass(frozen=True)
        class Impostor(Codec):
            names: ClassVar = {"int8": {}}

    assert REGISTRY["int8"] is Int


def test_calibration_content_is_part_of_the_digest() -> None:
    @dataclass(frozen=True)
    class Calibrated(Int):
        names: ClassVar = {"calibrated": {"bits": 8}}
        data: ClassVar[bytes] = b"one"

        def content(self) -> bytes:
            return self.data

    try:
        plain = Recipe.parse("calibrated").digest
        paired = Recipe.parse("int4/calibrated").digest
        Calibrated.data = b"two"
        assert Recipe.parse("calibrated").digest != plain
        assert Recipe.parse("int4/calibrated").digest != paired
    finally:
        del REGISTRY["calibrated"]


def test_scopes_pick_layers() -> None:
    for text, want in [
        ("0", {0}), ("-1", {9}), ("0-2", {0, 1, 2}), ("-2--1", {8, 9}), ("1--2", set(range(1, 9))),
        ("0,0-1,-1", {0, 1, 9}), ("-10-3", {0, 1, 2, 3}),
    ]:  # fmt: skip
        assert Scope.parse(text).layers(10) == want, text
    for text in ("10", "-11", "5--8", "0-10"):
        with pytest.raises(ValueError, match="do not fit a model of 10 layers; write 0 to 9"):
            Scope.parse(text).layers(10)
    assert Scope().layers(3) == {0, 1, 2}


@given(st.lists(ranges, min_size=1, max_size=4))
def test_scopes_print_canonically(several: list[tuple[int, int]]) -> None:
    texts = {str(Scope(tuple(p))) for p in itertools.permutations(several)}
    assert len(texts) == 1
    assert Scope.parse(texts.pop()) == Scope(tuple(several))


def teardown_module() -> None:
    for name in ("every", "other"):
        del REGISTRY[name]
