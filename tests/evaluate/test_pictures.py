"""Pictures: the same bytes each time, safe on a page, and right about what they show."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kvik.evaluate.pictures import (
    Axis,
    Level,
    Picture,
    Point,
    Series,
    Spot,
    canvas,
    css,
    draw_bars,
    draw_heat,
    draw_lines,
    draw_scatter,
    draw_spans,
    nats,
    pareto,
    short,
    size,
    style,
)
from kvik.evaluate.pictures.inline import inline
from kvik.evaluate.pictures.palette import ALL

NASTY = "a<b> & $x$ \x07 \ud800 漢字 😀 </svg><script>alert(1)</script>"


def lines(name: str = "lines", label: str = "int8") -> Picture:
    return draw_lines(
        name,
        f"title {label}",
        f"what is seen: {label}",
        [Series(label, [256, 512, 1024], [1e6, None, 4e6]), Series("b", [256, 1024], [2e6, 0.0])],
        Axis("tokens", "log2"),
        Axis("bytes", "log2", size),
        levels=[Level("weights", 3e6)],
        spots=[Spot(512, 3e6)],
        spots_label="crossover",
    )


def every(label: str = "int8") -> list[Picture]:
    return [
        lines("lines", label),
        draw_scatter(
            "scatter",
            label,
            label,
            [Point(label, 1e6, 0.0), Point("b", 2e6, 0.1), Point("c", 2e6, 0.1)],
            Axis("bytes", write=size),
            Axis("KL", "log", nats, floor=1e-6),
        ),
        draw_heat(
            "heat",
            label,
            label,
            [label, "b"],
            ["x", "y"],
            [[0.0, None], [0.5, 1.0]],
            row_label=label,
            column_label="c",
            key="share",
        ),
        draw_bars("bars", label, label, [label, "b"], {"k": [1e6, 2e6], "v": [1e6, 0]}, Axis("b")),
        draw_spans("spans", label, label, [label], [[(0, 4), (90, 100)]], 100,
                   row_label="layer", column_label="position"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return every()


def test_the_same_picture_has_the_same_bytes(pictures: list[Picture]) -> None:
    for one, two in zip(pictures, every(), strict=True):
        assert one.svg() == two.svg() == one.svg()
        assert one.png() == two.png()


def test_an_inline_picture_refers_to_nothing_outside(pictures: list[Picture]) -> None:
    for picture in pictures:
        text = picture.svg()
        assert not re.search(r"http|xlink|xmlns|@import|<style|<metadata|<image|<script", text)
        assert set(re.findall(r'href="(.)', text)) <= {"#"}
        for reference in re.findall(r"url\((.*?)\)", text) + re.findall(r'href="(.*?)"', text):
            assert f'id="{reference[1:]}"' in text


def test_ids_are_a_pictures_own(pictures: list[Picture]) -> None:
    found = [i for p in pictures for i in re.findall(r'\bid="(.*?)"', p.svg())]
    for picture in pictures:
        ids = set(re.findall(r'\bid="(.*?)"', picture.svg()))
        assert ids
        assert all(i.startswith(f"{picture.name}-") for i in ids)
    assert len(set(found)) == len(found)


def test_text_stays_text_and_is_named_for_a_screen_reader() -> None:
    root = ElementTree.fromstring(lines().svg())
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"] == "lines-title lines-desc"
    assert (root[0].tag, root[0].text) == ("title", "title int8")
    assert (root[1].tag, root[1].text) == ("desc", "what is seen: int8")
    texts = {(e.text or "").strip() for e in root.iter("text")}
    assert {"int8", "weights", "crossover", "tokens", "4 MiB", "512"} <= texts


def test_colours_are_variables_and_every_variable_has_two_values(pictures: list[Picture]) -> None:
    for picture in pictures:
        text = picture.svg()
        assert not re.search(r"#[0-9a-fA-F]{6}\b", text)
        assert set(re.findall(r"var\((--k-[a-z0-9-]+)\)", text)) <= {f"--k-{c.name}" for c in ALL}
    for colour in ALL:
        assert css().count(f"--k-{colour.name}:") == 2
    assert len({c.light for c in ALL}) == len({c.name for c in ALL}) == len(ALL)


def shown(text: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", text)


def test_things_that_are_counted_have_no_halves() -> None:
    axis, y = Axis("layer", whole=True), Axis("bytes")
    drawn = draw_lines("few", "t", "d", [Series("a", [0, 1, 2], [1.0, 2.0, 4.0])], axis, y)
    ticks = shown(drawn.svg())
    assert {"0", "1", "2"} <= set(ticks)
    assert "0.5" not in ticks


@pytest.mark.parametrize(("scale", "value"), [("log", 300.0), ("log2", 300.0), ("log", 0.004)])
def test_a_single_value_has_ticks_on_both_sides(scale: Any, value: float) -> None:
    axis = Axis("x", scale, write=lambda v: f"tick {v:g}")
    drawn = draw_lines("one", "t", "d", [Series("a", [value], [1.0])], axis, Axis("y"))
    assert sum(text.startswith("tick") for text in shown(drawn.svg())) >= 2


def test_a_colour_outside_the_palette_is_refused() -> None:
    with canvas("x") as (figure, axes):
        axes.plot([0, 1], [0, 1], color="#123456")
    with pytest.raises(ValueError, match="#123456"):
        Picture("x", "", "", figure).svg()


@pytest.mark.filterwarnings("error")
def test_text_from_outside_is_shown_and_not_run() -> None:
    for picture in every(NASTY):
        text = picture.svg()
        root = ElementTree.fromstring(text)
        assert "<script" not in text
        assert "$x$" in text
        assert (root[0].text or "").endswith("漢字 😀 </svg><script>alert(1)</script>")
        text.encode()
        assert picture.png().startswith(b"\x89PNG")


def test_no_series_is_missing_from_the_legend() -> None:
    texts = {e.text for e in ElementTree.fromstring(lines(label="_mine").svg()).iter("text")}
    assert texts >= {" _mine", "b", "weights", "crossover"}


def test_a_label_is_shortened_in_its_middle() -> None:
    assert short("0123456789", 10) == "0123456789"
    assert short("0123456789", 6) == "012…89"
    assert short("a\n\x00b") == "a\ufffd\ufffdb"


@pytest.mark.parametrize("name", ["", "A", 'x"', "1x", "x y"])
def test_a_name_that_is_no_id_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no name for a picture"):
        inline("<svg viewBox='0 0 1 1'/>", name, "", "")


def test_series_differ_without_their_colour() -> None:
    looks = [(s["marker"], s["linestyle"]) for s in map(style, range(12))]
    assert len(set(looks)) == 12


def test_the_front_is_what_nothing_beats() -> None:
    points = [(4, 0.0), (1, 9.0), (2, 3.0), (3, 5.0), (2, 8.0), (2, 3.0), (5, 0.0)]
    best = pareto(points)
    beaten = [any(c <= a and d <= b and (c, d) != (a, b) for c, d in points) for a, b in points]
    assert sorted(best) == [i for i, lost in enumerate(beaten) if not lost]
    assert [points[i][0] for i in best] == sorted(points[i][0] for i in best)


def test_an_axis_leaves_gaps_and_keeps_to_its_floor() -> None:
    assert math.isnan(Axis("x").place(None))
    assert math.isnan(Axis("x", "log").place(0.0))
    assert Axis("x", "log", floor=1e-6).place(0.0) == 1e-6
    assert Axis("x").place(-2.0) == -2.0


def test_missing_cells_are_hatched_and_named() -> None:
    def heat(values: list[list[float | None]]) -> str:
        return draw_heat(
            "h", "", "", ["a"], ["x", "y"], values, row_label="", column_label=""
        ).svg()

    assert "not counted" in heat([[0.0, None]])
    assert "<pattern" in heat([[0.0, None]])
    assert "not counted" not in heat([[0.0, 1.0]])


def test_files_are_whole(tmp_path: Path) -> None:
    path = lines().write_png(tmp_path / "a")
    assert path == tmp_path / "a" / "lines.png"
    assert path.read_bytes() == lines().png()
    assert [p.name for p in path.parent.iterdir()] == ["lines.png"]


def test_matplotlib_is_not_imported_before_a_picture_is_drawn() -> None:
    code = "import sys, kvik.evaluate.pictures; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    code = "import sys; from tests.evaluate.test_pictures import lines; lines().svg(); "
    code += "lines().png(); sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
