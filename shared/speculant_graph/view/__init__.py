"""Pictures of what a graph knows after a text: an interactive page, or a drawing."""
