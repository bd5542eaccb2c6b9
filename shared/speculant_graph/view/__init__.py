"""The explorer: look-ups of a text in a graph, and their page, served by the sidecar or saved as a file."""
