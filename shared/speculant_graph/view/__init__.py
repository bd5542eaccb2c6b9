"""The explorer: look-ups of a text in a graph, and the page that shows them, served by the sidecar or saved as a
file."""
