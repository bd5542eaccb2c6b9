"""``speculant bench engines``: the engines that people run, without drafts, with their own, and with ours."""
