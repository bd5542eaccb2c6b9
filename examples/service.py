"""A service in one program: the sidecar, the verifier, and a request as from OpenAI's clients.

A real service starts the two processes with systemd, Compose or Kubernetes (see ``deploy/``). The commands and the
request are the same.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import standard_library_folder

SPECULANT = [sys.executable, "-m", "speculant"]


def ask(url: str, body: dict[str, object] | None = None) -> bytes:
    """Send a POST request, or a GET request if there is no body; return the response's body."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"Content-Type": "application/json"})) as response:
        return response.read()


def wait_until_it_serves(url: str, process: subprocess.Popen[bytes]) -> None:
    """Send requests until the server answers; first it loads torch and the model."""
    while process.poll() is None:
        try:
            ask(url)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit(f"the server ended with status {process.returncode}")


def start(stack: ExitStack, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a server that ends with this program."""
    process = stack.enter_context(subprocess.Popen([*SPECULANT, *arguments]))
    stack.callback(process.terminate)
    return process


with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
    graph, drafter = str(Path(folder, "graph.pkl")), f"unix://{folder}/drafter.sock"
    text = str(standard_library_folder() / "asyncio")
    build = [*SPECULANT, "build", text, "--tokenizer", str(MODEL_FOLDER), "-o", graph, "--no-neural"]
    subprocess.run(build, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"

    start(servers, "drafter", "--graph", graph, "--listen", drafter)
    verifier = start(
        servers, "verifier", "--model", str(MODEL_FOLDER), "--drafter", drafter, "--http", address,
        "--listen", f"unix://{folder}/verifier.sock", "--no-verifier.measure-costs",
    )  # fmt: skip
    wait_until_it_serves(f"http://{address}/healthz", verifier)

    prompt = "class EchoProtocol(asyncio.Protocol):\n    def connection_made(self, transport):"
    answer = json.loads(ask(f"http://{address}/v1/completions", {"model": "model", "prompt": prompt, "max_tokens": 60}))
    print(prompt + answer["choices"][0]["text"])
    print(f"{answer['speculant']['mean_accepted_tokens']:.1f} tokens per pass")
