"""The verbs that work, on a tiny model with real files."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvik import native

from .conftest import Call


def test_models_lists_both(kvik: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVIK_HOME", str(tmp_path))
    assert "smollm2-135m" in kvik("models").out
    facts = json.loads(kvik("models", "--json").out)
    assert [(m["name"], m["present"]) for m in facts["models"]] == [
        ("smollm2-135m", False),
        ("gemma3-270m", False),
    ]
    assert facts["folder"] == str(tmp_path / "models")


def test_doctor_says_what_is_here(kvik: Call) -> None:
    facts = json.loads(kvik("doctor", "--json").out)
    assert facts["backend"] == ("reference" if native.library() is None else "native")
    assert facts["cores"]["used"] >= 1
    assert facts["memory"]["limit_bytes"] >= facts["memory"]["available_bytes"] > 0
    assert facts["packages"]["torch"]
    shown = kvik("doctor")
    assert shown.status == 0
    assert facts["models"]["folder"] in shown.out.replace("\n", "")


def test_prompt_from_argument_file_and_pipe_say_the_same(
    kvik: Call, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_text("Grüße, 세계 🙂")
    options = ("--kv", "int8", "--max-new", "12", "--json")
    model = str(tiny_model)
    calls = [
        kvik("run", model, "Grüße, 세계 🙂", *options),
        kvik("run", model, "--file", str(tmp_path / "prompt"), *options),
        kvik("run", model, *options, stdin="Grüße, 세계 🙂".encode()),
    ]
    facts = [json.loads(call.out) for call in calls]
    assert [call.status for call in calls] == [0, 0, 0]
    assert facts[0]["recipe"] == "int8"
    assert facts[0]["new_tokens"] == 12
    assert facts[0]["kv_bytes"] > 0
    assert facts[0]["text"] == facts[1]["text"] == facts[2]["text"]


def test_text_goes_to_one_stream_and_figures_to_the_other(kvik: Call, tiny_model: Path) -> None:
    model, options = str(tiny_model), ("--max-new", "8", "--kv", "fp32")
    done = kvik("run", model, "hello", *options)
    facts = json.loads(kvik("run", model, "hello", *options, "--json").out)
    assert done.out == facts["text"] + "\n"
    assert "prompt + 8 new tokens; KV " in done.line
    assert "fp32" in done.line
    assert "decode" in done.line


def test_seed_decides_the_draw(kvik: Call, tiny_model: Path) -> None:
    def text(seed: int) -> str:
        options = ("--temperature", "1.5", "--top-p", "0.95", "--seed", str(seed))
        done = kvik("run", str(tiny_model), "hello", "--max-new", "16", "--json", *options)
        return str(json.loads(done.out)["text"])

    assert text(1) == text(1) != text(2)


def test_stop_string_ends_before_itself(kvik: Call, tiny_model: Path) -> None:
    options = ("hello", "--raw", "--max-new", "24", "--json")
    whole = json.loads(kvik("run", str(tiny_model), *options).out)["text"]
    stop = whole[4:6]
    cut = json.loads(kvik("run", str(tiny_model), *options, "--stop", stop).out)
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish"] == "stop"


def test_more_than_the_models_context_is_warned_of(kvik: Call, tiny_base_model: Path) -> None:
    done = kvik("run", str(tiny_base_model), "x" * 250, "--max-new", "8")
    assert done.status == 0
    assert done.err.startswith("kvik: warning: 250 prompt and 8 new tokens are beyond the 256")


class Terminal:
    """``kvik run`` at a terminal of its own."""

    def __init__(self, *args: str) -> None:
        self.screen = ""
        self._here, there = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvik", "run", *args],
            stdin=there,
            stdout=there,
            stderr=there,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(there)

    def wait_for(self, text: str, count: int = 1, seconds: float = 60) -> None:
        os.set_blocking(self._here, False)
        end = time.monotonic() + seconds
        while self.screen.count(text) < count:
            assert time.monotonic() < end, self.screen
            try:
                self.screen += os.read(self._here, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                assert self.screen.count(text) >= count, self.screen

    def type(self, text: str) -> None:
        os.write(self._here, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def status(self) -> int:
        status = self._process.wait(timeout=60)
        os.close(self._here)
        return status


@pytest.mark.slow
def test_chat_keeps_its_history_and_survives_an_interrupt(tiny_model: Path) -> None:
    chat = Terminal(str(tiny_model), "--kv", "int8", "--max-new", "5")
    chat.wait_for("> ")
    chat.type("one\n")
    chat.wait_for("new tokens; KV")
    chat.type("two\n")
    chat.wait_for("new tokens; KV", 2)
    # The second turn feeds the end of the first answer and the new message, not the history.
    first, second = [line for line in chat.screen.splitlines() if "new tokens; KV" in line]
    assert int(second.split(" prompt")[0].split("[")[1]) <= int(first.split(" prompt")[0][1:]) + 15
    chat.type("/foo bar\n")
    chat.wait_for("/foo is no command: /exit leaves, /reset forgets, /help lists")
    chat.type("/reset\n")
    chat.type("/exit\n")
    assert chat.status() == 0
    assert chat.screen.count("new tokens; KV") == 2
    assert "Traceback" not in chat.screen


@pytest.mark.slow
def test_interrupt_stops_the_answer_then_the_chat(tiny_model: Path) -> None:
    chat = Terminal(str(tiny_model), "--kv", "fp16", "--max-new", "100000")
    chat.wait_for("> ")
    chat.type("go on\n")
    time.sleep(2)
    chat.interrupt()
    chat.wait_for("new tokens; KV")
    chat.wait_for("> ", 2)
    chat.interrupt()
    chat.wait_for("kvik: interrupted")
    assert chat.status() == 130
    assert "Traceback" not in chat.screen
