"""The explorer: looks up a text in a graph and shows the result as a page, served by the sidecar or saved as a file."""
