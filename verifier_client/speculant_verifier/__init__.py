"""The verifier: runs the target model, checks drafts in one forward pass, and emits the model's own text.

All code that needs torch is here. :mod:`speculant_graph` re-exports the public names lazily.
"""
