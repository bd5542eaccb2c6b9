"""What accepted text teaches, and how it outlives the process."""
