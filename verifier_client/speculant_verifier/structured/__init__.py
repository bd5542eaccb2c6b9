"""Output that must have a form: a JSON schema, a regular expression, one of some texts, a grammar.

The mask of a node of a draft is that of its path, so that drafts change nothing; nodes that the form forbids are left
out before the pass, and what it forces is drafted. Masks are made by llguidance, which goes back by tokens, as trees
need.
"""

from speculant_verifier.structured.constraint import Constraint
from speculant_verifier.structured.grammar import Grammar, Grammars, form_of

__all__ = ["Constraint", "Grammar", "Grammars", "form_of"]
