"""Text to token ids: finds, reads and tokenises the files of a corpus."""
