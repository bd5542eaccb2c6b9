"""What a graph knows after a text: looked up, and shown on a page, which the sidecar serves or a file keeps."""
