"""The verifier's commands, with their shared settings, console and prompt input."""
