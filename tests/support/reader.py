"""A simulated reader who runs a page from top to bottom, with a prepared folder, a shell and an interpreter.

Pages name ports and socket folders as a user would. The reader replaces ports with free ones and socket folders with
private ones, and changes nothing else in a block.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from speculant_graph.cli.main import main
from speculant_verifier.demo import DRAFT_MODEL_FOLDER, MODEL_FOLDER
from support.pages import ROOT, Block
from support.training import fill_records

TEXT = "The parties agree to the terms of this agreement. In case of doubt the parties agree to talk.\n"
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CHAT = [{"role": "user", "content": "Who decides?"}, {"role": "assistant", "content": TEXT.strip()}]

STAND_IN = "openai/gpt-oss-20b"
"""Name of a released model. In the reader's folder it is a folder with the demo's model, a tiny gpt-oss, instead."""

PATIENCE_S = 150.0
"""Time limit of a block; the first one on a machine compiles."""

_PORT = re.compile(r"\b(127\.0\.0\.1|localhost|0\.0\.0\.0):(\d{4,5})\b")
_SOCKETS = re.compile(r"/(?:tmp|run)/speculant-(drafter|verifier)\b")
_ENVIRONMENT = {
    "SPECULANT_VERIFIER__NUM_THREADS": "1",
    "SPECULANT_VERIFIER__MEASURE_COSTS": "false",  # it would take six seconds for every new model
    "SPECULANT_TRAIN__LEARNING_RATE": "0.005",  # there is only one text to learn
    "SPECULANT_TRAIN__EPOCHS": "2",
}
_INTERPRETER = """
import contextlib, json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    title, source, path = json.loads(line)
    with open(path, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        exec(compile(source, title, "exec"), names)
    print("done", flush=True)
"""


def make_folder(folder: Path, graph: Path | None) -> None:
    """Fill a folder with the files that pages assume: my-model, my-draft-model, my-records, my-text, ..., graph.pkl.

    Args:
        folder: an empty folder.
        graph: the graph of my-text in a previously filled folder; None: the graph is built.
    """
    shutil.copytree(MODEL_FOLDER, folder / "my-model")
    (folder / "my-model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    shutil.copytree(DRAFT_MODEL_FOLDER, folder / "my-draft-model")
    prompts = ({"prompt": "The parties agree", "document": f"agreement-{index}"} for index in range(12))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts), encoding="utf-8")
    if graph is None:
        fill_records(folder / "my-records", folder / "my-draft-model", num_tokens=12)
    else:
        shutil.copytree(graph.parent / "my-records", folder / "my-records")
    (folder / "openai").mkdir()
    (folder / STAND_IN).symlink_to(folder / "my-model")
    (folder / "my-text").mkdir()
    for name, times in (("first.txt", 20), ("second.txt", 100)):
        (folder / "my-text" / name).write_text(TEXT * times, encoding="utf-8")
    (folder / "my-notes").mkdir()
    (folder / "my-notes" / "notes.md").write_text("# Notes\n\n" + TEXT, encoding="utf-8")
    trace = {"prompt": TEXT, "output": TEXT * 3}
    (folder / "my-traces.jsonl").write_text((json.dumps(trace) + "\n") * 2, encoding="utf-8")
    (folder / "my-chats.jsonl").write_text((json.dumps({"messages": CHAT}) + "\n") * 3, encoding="utf-8")
    for name in ("protos", "verifier_client"):  # for pages that assume a checkout
        (folder / name).symlink_to(ROOT / name)
    if graph is not None:
        shutil.copy(graph, folder / "graph.pkl")
        return
    arguments = ["--tokenizer", str(folder / "my-model"), "-o", str(folder / "graph.pkl")]
    assert main(["build", str(folder / "my-text"), *arguments]) == 0


class Reader:
    """Runs a page's blocks one after another; programs that they start in the background run until :meth:`leave`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._notes = folder.with_name(folder.name + "-notes")  # outside the folder, which holds only the page's files
        self._notes.mkdir()
        self._sockets = tempfile.TemporaryDirectory(prefix="s-")  # a socket's path has at most 107 bytes
        # Default addresses of servers that a page starts without naming an address.
        self._listening = {
            "SPECULANT_SERVER__LISTEN": f"unix://{self._sockets.name}/drafter/drafter.sock",
            "SPECULANT_SERVICE__LISTEN": f"unix://{self._sockets.name}/verifier/verifier.sock",
        }
        self._ports: dict[str, int] = {}
        self._shell: subprocess.Popen[str] | None = None
        self._interpreter: subprocess.Popen[str] | None = None
        self._number = 0

    def follow(self, page: str, block: Block) -> str:
        """Run or save a block; return its output.

        Args:
            page: name of the page, for messages.
            block: a block of bash or Python, or a block to save as a file.
        """
        if block.file_name:
            (self.folder / block.file_name).write_text(self.localised(block.body), encoding="utf-8")
            return ""
        self._number += 1
        source = self._notes / f"{self._number}.{block.language}"
        output = self._notes / f"{self._number}.out"
        source.write_text(self.localised(block.body), encoding="utf-8")
        if block.language == "bash":
            done = self._sh(source, output)
        else:
            done = self._py(f"{page}, line {block.line}", source, output)
        printed = output.read_text(encoding="utf-8") if output.exists() else ""
        said = "".join(path.read_text(encoding="utf-8") for path in sorted(self._notes.glob("*.err")))
        assert done, f"{page}, line {block.line}:\n{block.body}\nprinted:\n{printed}\nstandard error:\n{said[-4000:]}"
        return printed

    def leave(self) -> None:
        """End the interpreter, the shell, and all processes that they started."""
        for process in (self._interpreter, self._shell):
            if process is None:
                continue
            assert process.stdin is not None
            assert process.stdout is not None
            with process:
                try:
                    process.stdin.close()
                    process.wait(60)
                except (BrokenPipeError, subprocess.TimeoutExpired):
                    _kill(process)
        self._sockets.cleanup()

    def localised(self, text: str) -> str:
        """Return a block's text with free ports and this reader's socket folder."""
        text = _SOCKETS.sub(lambda match: f"{self._sockets.name}/{match[1]}", text)
        return _PORT.sub(lambda match: f"{match[1]}:{self._port(match[2])}", text)

    def _port(self, shown: str) -> int:
        if shown not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as server:
                self._ports[shown] = server.getsockname()[1]
        return self._ports[shown]

    def _sh(self, source: Path, output: Path) -> bool:
        if self._shell is None:
            self._shell = self._start("shell", ["bash", "--noprofile", "--norc", "-euo", "pipefail"])
            self._tell(self._shell, "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT")
        errors = output.with_suffix(".err")
        self._tell(self._shell, f"source {source} </dev/null >{output} 2>{errors}; echo done")
        return self._is_done(self._shell)

    def _py(self, title: str, source: Path, output: Path) -> bool:
        if self._interpreter is None:
            self._interpreter = self._start("interpreter", [sys.executable, "-c", _INTERPRETER])
        self._tell(self._interpreter, json.dumps([title, source.read_text(encoding="utf-8"), str(output)]))
        return self._is_done(self._interpreter)

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with (self._notes / f"{name}.err").open("w", encoding="utf-8") as errors:
            return subprocess.Popen(
                command, cwd=self.folder,
                env=os.environ | _ENVIRONMENT | self._listening | {"PATH": path, "CHECKOUT": str(ROOT)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip

    @staticmethod
    def _tell(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()

    @staticmethod
    def _is_done(process: subprocess.Popen[str]) -> bool:
        assert process.stdout is not None
        patience = threading.Timer(PATIENCE_S, _kill, [process])  # a page may wait for a server that never starts
        patience.start()
        line = process.stdout.readline()
        patience.cancel()
        return line == "done\n"


def _kill(process: subprocess.Popen[str]) -> None:
    """End one of our processes and all processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
