"""The report as a browser shows it: it fits two widths, light and dark, and asks for nothing.

Every host name leads to a server here that writes down what it is asked for.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvik.evaluate.charts import draw
from kvik.evaluate.report import render

from .test_report import with_baseline

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium"),
]
WIDTHS = (360, 1280)
MARK = '<img src="http://elsewhere.test/mark.png" alt="">'

# Frames of both widths, and what a script sees in them; the report itself has none.
MEASURE = """<!doctype html><title>measure</title>
{frames}
<pre id="found"></pre>
<script>
onload = () => {{
  const found = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument, root = page.documentElement;
    const pictures = [...page.querySelectorAll("svg.picture")].map(svg => {{
      const box = svg.getBoundingClientRect(), text = svg.querySelector("text");
      const scale = box.width / svg.viewBox.baseVal.width;
      return {{width: box.width, height: box.height, right: box.right,
              points: parseFloat(getComputedStyle(text).fontSize) * scale,
              ink: getComputedStyle(text).fill}};
    }});
    return {{width: root.clientWidth, needs: root.scrollWidth, pictures,
            tops: pictures.length && new Set([...page.querySelectorAll("figure")].map(
              one => Math.round(one.getBoundingClientRect().left))).size,
            back: getComputedStyle(page.body).backgroundColor,
            ink: getComputedStyle(page.body).color}};
  }});
  document.getElementById("found").textContent = JSON.stringify(found);
}};
</script>
"""


@dataclass
class Server:
    """Pages by path, and every request that came: (host, path)."""

    pages: dict[str, str]
    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    here = Server({})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here.asked.append((self.headers.get("Host", ""), self.path))
            page = here.pages.get(self.path)
            self.send_response(404 if page is None else 200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here.port = listening.server_port
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    yield here
    listening.shutdown()
    listening.server_close()
    thread.join()


def browse(server: Server, path: str, profile: Path, *, dark: bool = False) -> str:
    """The page as Chromium has it once it is loaded."""
    done = subprocess.run(
        [
            str(BROWSER),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-features=NetworkTimeServiceQuerying",  # asks its maker for the time
            "--no-first-run",
            f"--user-data-dir={profile}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--host-resolver-rules=MAP * 127.0.0.1:{server.port}",
            "--window-size=1400,1000",
            "--dump-dom",
            f"http://127.0.0.1:{server.port}{path}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def test_the_page_asks_for_nothing(server: Server, tmp_path: Path) -> None:
    page = render(with_baseline())
    own = f"127.0.0.1:{server.port}"
    server.pages["/report.html"] = page
    assert "Needles: fp32" in browse(server, "/report.html", tmp_path)
    assert server.asked == [(own, "/report.html")]
    # A request that slipped into the page would be stopped by its policy ...
    server.pages["/marked.html"] = page.replace("</body>", f"{MARK}</body>")
    browse(server, "/marked.html", tmp_path)
    assert server.asked[1:] == [(own, "/marked.html")]
    # ... and would be seen here without it.
    naked = re.sub(r"<meta http-equiv[^>]*>", "", server.pages["/marked.html"])
    server.pages["/naked.html"] = naked
    browse(server, "/naked.html", tmp_path)
    assert ("elsewhere.test", "/mark.png") in server.asked


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_a_desk(server: Server, tmp_path: Path, dark: bool) -> None:
    facts = with_baseline()
    server.pages["/report.html"] = render(facts)
    frame = '<iframe src="/report.html" style="border:0;width:{0}px;height:900px"></iframe>'
    frames = "".join(frame.format(width) for width in WIDTHS)
    server.pages["/measure.html"] = MEASURE.format(frames=frames)
    text = re.search(
        r'<pre id="found">(.*?)</pre>', browse(server, "/measure.html", tmp_path, dark=dark)
    )
    assert text is not None
    phone, desk = json.loads(unescape(text[1]))
    for view in (phone, desk):
        assert view["needs"] <= view["width"]
        assert len(view["pictures"]) == len(list(draw(facts)))
        back, ink = brightness(view["back"]), brightness(view["ink"])
        assert (back < 60 and ink > 180) if dark else (back > 200 and ink < 80)
        for picture in view["pictures"]:
            assert picture["right"] <= view["width"]
            assert picture["height"] > 100
            assert picture["points"] >= 9.5
            assert picture["ink"] == view["ink"]
    assert phone["tops"] == 1
    assert desk["tops"] >= 3


def brightness(colour: str) -> float:
    """Of ``rgb(r, g, b)``, 0 to 255."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3
