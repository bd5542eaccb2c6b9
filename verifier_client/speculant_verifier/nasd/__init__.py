"""NASD: n-grams stored during decoding, as a drafter and as the paper's loop."""
