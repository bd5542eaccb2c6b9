"""The demo: everything real, small enough for any machine. ``speculant demo`` runs it, ``train`` made its model."""
