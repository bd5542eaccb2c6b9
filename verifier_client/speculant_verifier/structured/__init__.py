"""Structured output: a JSON schema, a regular expression, a choice of texts, or a grammar.

The mask at a draft node depends only on the path to it, so drafts do not change the output. Draft nodes that the
grammar forbids are dropped before the forward pass, and tokens that the grammar forces are drafted. llguidance computes
the masks; it can roll back tokens, which draft trees require.
"""

from speculant_verifier.structured.constraint import Constraint
from speculant_verifier.structured.grammar import Grammar, Grammars, form_of

__all__ = ["Constraint", "Grammar", "Grammars", "form_of"]
