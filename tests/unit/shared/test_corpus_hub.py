"""Names on a hub: a cached model needs no connection, and an error for any other is one line."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("listens", "reason"), [(True, "Timeout"), (False, "Connect")])
def test_a_hub_that_does_not_answer_is_not_waited_for(
    tokenizer_folder: Path, tmp_path: Path, listens: bool, reason: str
) -> None:
    repository = tmp_path / "models--somebody--something"
    shutil.copytree(tokenizer_folder, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT, "utf-8")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if not listens:
            silent.close()
        # In a separate process, because the hub's settings are read only once.
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, "somebody/something", "somebody/else", "no name"],
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "0",
                "HF_HUB_CACHE": str(tmp_path),
                "HF_ENDPOINT": endpoint,
                "HF_HUB_ETAG_TIMEOUT": "1",
            },
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
    revision, unknown, no_name = map(json.loads, ran.stdout.splitlines())
    assert (revision, ran.stderr) == (COMMIT, "")
    assert unknown.startswith("there is no folder somebody/else here, and it can't be fetched from the hub (")
    assert reason in unknown
    assert "set graph.tokenizer_name to" in no_name
