"""NASD: n-grams that are stored while decoding, as a drafter and as the loop of the paper."""
