"""The n-gram graph: how it is counted, looked up, stored in a file and exported."""
