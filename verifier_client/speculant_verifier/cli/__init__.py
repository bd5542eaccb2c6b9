"""Commands of the verifier, and the settings, console output and prompt input that they share."""
