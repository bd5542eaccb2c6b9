"""``python -m speculant_drafter``: the same as ``speculant drafter``."""

from __future__ import annotations

import sys

from speculant_graph.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["drafter", *sys.argv[1:]]))
