"""``speculant generate``: texts continued on the command line."""
