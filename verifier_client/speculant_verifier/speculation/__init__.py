"""How much to speculate: what verifying costs, what drafts have been worth, and what the target has said before."""
