"""Scripts that complete commands, one file for each shell."""
