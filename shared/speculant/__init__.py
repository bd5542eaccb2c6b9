"""The program ``speculant``, separate from the library so that Ctrl-C is handled before slow imports begin."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line of this process and return its exit status.

    Raises:
        SystemExit: raised by :func:`speculant_graph.cli.main.main`, which documents the exit statuses.
    """
    try:
        from speculant_graph.cli.main import main as run

        return run()
    except KeyboardInterrupt:  # before the command line is parsed, or after its command has ended
        sys.stderr.write("speculant: interrupted\n")
        return 130
