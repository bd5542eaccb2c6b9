"""NASD (n-gram assisted speculative decoding): a drafter for the engine, and the paper's decoding loop."""
