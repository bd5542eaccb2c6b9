"""A page on which people look into the graphs that a sidecar serves, and the JSON behind it.

Look-ups are made in a process of their own, which has the graph files and nothing else: no sessions, no learned text,
no keys. The service's event loop and its GIL only hand bytes on.
"""
