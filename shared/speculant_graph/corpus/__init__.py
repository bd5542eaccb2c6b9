"""Text to token ids: which files make a corpus, and how they are read and tokenised."""
