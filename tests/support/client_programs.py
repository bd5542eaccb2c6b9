"""Third-party client programs for a server, each with its own home folder and with traps for other connections."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

CLIENTS = Path(__file__).parents[2] / ".cache" / "clients"
"""Folder in which ``make clients`` installs them."""
NODE_PROGRAMS = CLIENTS / "npm" / "node_modules" / ".bin"
PYTHON = CLIENTS / "python" / "bin" / "python"
AIDER = CLIENTS / "aider" / "bin" / "aider"
SCRIPTS = Path(__file__).parents[1] / "clients" / "scripts"
TIMEOUT_S = 400.0

_NODE_TRAP = """
const fs = require("fs"), net = require("net");
const connect = net.Socket.prototype.connect;
const isOurs = (host) => host === undefined || host === "localhost" || host === "::1" || /^127[.]/.test(host);
net.Socket.prototype.connect = function (...args) {
  const options = Array.isArray(args[0]) ? args[0][0] : args[0];
  if (options && typeof options === "object" && !options.path && !isOurs(options.host)) {
    fs.appendFileSync(process.env.TRAP_FILE, `node: ${options.host}:${options.port}\\n`);
    throw new Error("there is no network here");
  }
  return connect.apply(this, args);
};
"""
_PYTHON_TRAP = """
import os, sys

def _watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = str(arguments[1][0])
        if host not in ("localhost", "::1") and not host.startswith("127."):
            with open(os.environ["TRAP_FILE"], "a", encoding="utf-8") as file:
                file.write(f"python: {arguments[1]}\\n")
            raise OSError("there is no network here")

sys.addaudithook(_watch)
"""


class Trap:
    """A proxy that blocks everything, and hooks for programs that ignore proxies; both record other servers' names."""

    def __init__(self, folder: Path) -> None:
        """Start to listen, and write the hooks into a folder."""
        self._file = folder / "trap.txt"
        self._file.touch()
        (folder / "trap.cjs").write_text(_NODE_TRAP, encoding="utf-8")
        (folder / "sitecustomize.py").write_text(_PYTHON_TRAP, encoding="utf-8")
        self._listener = socket.create_server(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        names = ("http_proxy", "https_proxy", "all_proxy")
        self.environment = {spelt: proxy for name in names for spelt in (name, name.upper())} | {
            "no_proxy": "127.0.0.1,localhost",
            "NO_PROXY": "127.0.0.1,localhost",
            "NODE_OPTIONS": f"--require={folder / 'trap.cjs'}",
            "PYTHONPATH": str(folder),
            "TRAP_FILE": str(self._file),
        }
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def caught(self) -> list[str]:
        """Names of the servers that programs tried to reach."""
        return self._file.read_text(encoding="utf-8").splitlines()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):  # raised once the socket is closed
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(OSError):
                    connection.settimeout(10)
                    line = connection.recv(4096).partition(b"\r\n")[0].decode(errors="replace")
                    with self._file.open("a", encoding="utf-8") as file:
                        file.write(f"proxy: {line}\n")
                    connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


class Programs:
    """Runs third-party programs in a separate home and working folder."""

    def __init__(self, folder: Path, url: str) -> None:
        """Create the folders.

        Args:
            folder: folder for everything that the programs write.
            url: URL of the server's API, ending in ``/v1``.
        """
        self.url = url
        self.home, self.work = folder / "home", folder / "work"
        for each in (self.home, self.work):
            each.mkdir(parents=True)
        self.trap = Trap(folder)

    def run(self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, text: str = "") -> str:
        """Run a program to its end; return its standard output.

        Args:
            command: program and arguments.
            environment: further environment variables.
            text: standard input.

        Raises:
            AssertionError: the program failed.
        """
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            **self.trap.environment,
            **(environment or {}),
        }
        words = [str(word) for word in command]
        done = subprocess.run(
            words,
            cwd=self.work,
            env=variables,
            input=text,
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (
            f"{words[0]} ended with {done.returncode}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    def script(self, name: str, *arguments: str) -> str:
        """Run a script of ``tests/clients`` in its language's interpreter, with the URL as its first argument."""
        path = SCRIPTS / name
        if path.suffix == ".py":
            return self.run([PYTHON, path, self.url, *arguments])
        copy = CLIENTS / "npm" / name  # modules are searched for from the script's folder
        copy.write_bytes(path.read_bytes())
        return self.run(["node", copy, self.url, *arguments])
