"""NASD, n-gram assisted speculative decoding, as a drafter and as the paper's loop."""
