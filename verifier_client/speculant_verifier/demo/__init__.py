"""The demo: everything real, small enough for any machine."""
