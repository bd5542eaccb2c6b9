"""Enumerates every outcome of a random program, with exact probabilities."""

from __future__ import annotations

from collections import defaultdict

import numpy as np


class Chance:
    """One path through a random program; records the alternatives not taken."""

    def __init__(self, way):
        self.way, self.others, self.taken, self.probability = way, [], [], 1.0

    def choose(self, weights):
        """Return an index, with probability proportional to its weight."""
        shares = np.asarray(weights, np.float64) / np.sum(weights)
        step = len(self.taken)
        if step < len(self.way):
            index = self.way[step]
        else:
            index, *rest = np.flatnonzero(shares).tolist()
            self.others += [(*self.taken, other) for other in rest]
        self.taken.append(index)
        self.probability *= shares[index]
        return index


class Uniform:
    """A uniform number in [0, scale) that takes its value on its first comparison or draw, its only use."""

    def __init__(self, chance, scale=1.0, used=None):
        self.chance, self.scale, self.used = chance, scale, [] if used is None else used

    def use(self):
        assert not self.used, "a number decides one thing"
        self.used.append(True)
        return self.chance

    def __mul__(self, factor):
        return Uniform(self.chance, self.scale * factor, self.used)

    def __lt__(self, bound):
        below = min(1.0, float(bound) / self.scale) if self.scale > 0 else float(bound > 0)
        return self.use().choose([1 - below, below]) == 1

    def __gt__(self, bound):
        return not self < bound


def every_outcome(program):
    """Return the probability of every possible result of a random program."""
    found, ways = defaultdict(float), [()]
    while ways:
        chance = Chance(ways.pop())
        found[program(chance)] += chance.probability
        ways += chance.others
    return dict(found)
