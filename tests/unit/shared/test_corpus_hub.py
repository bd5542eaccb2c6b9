"""Names that are folders, names on a hub, and names that are neither: a hub of our own, reached or not."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import json, sys
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError
for name in sys.argv[1:]:
    try:
        tokenizer = CorpusTokenizer.load(name)
        assert (tokenizer.fingerprint.name, tokenizer.bos_id, tokenizer.eos_id) == (name, 0, 1)
        print(json.dumps(tokenizer.revision))
    except ConfigError as error:
        print(json.dumps(str(error)))
"""


@contextmanager
def hub(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder as ``somebody/something``; ``somebody/locked`` needs permission, and no other is there."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(has_body=False)

        def do_GET(self) -> None:
            self._answer(has_body=True)

        def _answer(self, *, has_body: bool) -> None:
            asked.append(self.path)
            repository, _, file = self.path.lstrip("/").partition("/resolve/main/")
            error, status, body = "", 200, b""
            if repository == "somebody/locked":
                error, status = "GatedRepo", 403
            elif repository != "somebody/something":
                error, status = "RepoNotFound", 404
            elif not (folder / file).is_file():
                error, status = "EntryNotFound", 404
            else:
                body = (folder / file).read_bytes()
            self.send_response(status)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Error-Code" if error else "ETag", error or f'"{file}"')
            self.end_headers()
            if has_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def load(cache: Path, endpoint: str, *names: str, **more: str) -> list[str]:
    """Load tokenizers in a process of their own, as the hub's settings are read once; nothing but that is said."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_CACHE": str(cache),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        **more,
    }
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names], env=environment, capture_output=True, text=True, check=True, cwd=cache
    )
    assert ran.stderr == ""
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_hub_is_asked_and_what_it_gave_is_there_without_it(tokenizer_folder: Path, tmp_path: Path) -> None:
    with hub(tokenizer_folder) as (endpoint, asked):
        revision, unknown, locked = load(tmp_path, endpoint, "somebody/something", "nobody", "somebody/locked")
        assert revision == COMMIT
        assert unknown.startswith("there is no folder nobody here, and the hub does not give it (RepositoryNotFound")
        assert "(GatedRepoError: " in locked
        assert "with --graph.hf-token and an accepted licence" in locked
        num_asked = len(asked)
        for said in load(tmp_path, endpoint, "./nothing", "a/b/c", "no name"):
            assert "there is no folder " in said
            assert "set --graph.tokenizer-name to" in said
        assert len(asked) == num_asked
    # The port is closed now.
    (unknown,) = load(tmp_path, endpoint, "nobody/nothing")
    assert unknown.startswith("there is no folder nobody/nothing here, and the hub does not give it (Connect")
    (tmp_path / "somebody").mkdir()
    assert load(tmp_path, endpoint, "somebody/something") == [COMMIT]


def test_a_hub_that_says_nothing_is_not_waited_for(tokenizer_folder: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--somebody--something"
    shutil.copytree(tokenizer_folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, "utf-8")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        names = ("somebody/something", "somebody/else")
        revision, unknown = load(tmp_path, endpoint, *names, HF_HUB_ETAG_TIMEOUT="1")
    assert revision == COMMIT
    assert "Timeout" in unknown
