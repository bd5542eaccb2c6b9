"""Scratch of one drafter: room for a tree that grows, and for the distribution of one node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from speculant_graph.draft.calibration import Mixture, make_mixture
from speculant_graph.draft.escapes import Float64Array
from speculant_graph.draft.history import WINDOW
from speculant_graph.draft.sources import Entries, make_entries
from speculant_graph.graph.layout import Int64Array

MAX_NODES = 1_024
"""Most nodes of a draft."""
MAX_DEPTH = 255
MAX_BRANCHES = 64


class Tree(NamedTuple):
    """A draft being grown. Node 0 is the root, node j + 1 the draft's j-th node."""

    tokens: Int64Array
    parents: Int64Array
    probabilities: Float64Array
    """Of the whole path."""
    depths: Int64Array
    states: Int64Array
    """(order, record) of the longest context of the graph at a node, shape ``[nodes, 2]``."""
    window: Int64Array
    """The last tokens of the sequence, then the path to the node that grows."""
    heap: Int64Array
    """Children that may become nodes, the most probable first; numbers of the arrays below."""
    child_tokens: Int64Array
    child_parents: Int64Array
    child_probabilities: Float64Array


class Workspace(NamedTuple):
    """Scratch of one thread."""

    tree: Tree
    entries: Entries
    mixture: Mixture


def make_workspace() -> Workspace:
    """Return room for the largest drafts."""
    max_nodes = MAX_NODES
    num_children = (max_nodes + 1) * MAX_BRANCHES
    tree = Tree(
        tokens=np.zeros(max_nodes + 1, np.int64),
        parents=np.zeros(max_nodes + 1, np.int64),
        probabilities=np.zeros(max_nodes + 1),
        depths=np.zeros(max_nodes + 1, np.int64),
        states=np.zeros((max_nodes + 1, 2), np.int64),
        window=np.zeros(WINDOW + MAX_DEPTH + 1, np.int64),
        heap=np.zeros(num_children, np.int64),
        child_tokens=np.zeros(num_children, np.int64),
        child_parents=np.zeros(num_children, np.int64),
        child_probabilities=np.zeros(num_children),
    )
    return Workspace(tree, make_entries(), make_mixture())
