"""Turns text into token ids: finds, reads and tokenises the files of a corpus."""
