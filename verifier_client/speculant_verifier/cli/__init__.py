"""The verifier's commands, and what they share: settings, the console, what is typed."""
