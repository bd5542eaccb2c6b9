"""The verifier: runs the target model, checks drafts in one forward pass, and emits the model's own text.

Everything that needs torch is here. The public names are re-exported, late, by :mod:`speculant_graph`.
"""
