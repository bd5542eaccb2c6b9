// The last word on the candidates of a position: a small network that sees what every context says about each of them.
//
// The mixture knows how far each kind of context can be trusted, and the bins which sources agree. What they don't know
// is how much each context has seen, and how often the very candidate came after it; features.hpp makes numbers of
// that, and network.hpp makes new probabilities of them.
//
// It goes with the neural model: where that is left out, as it takes more time than it saves or there is none, so is
// the mixer. The weights come with the package and know no tokens. tests/models/train_mixer.py trained them, on
// recorded outputs.
#pragma once

#include "mixer/network.hpp"

namespace speculant::mixer {

/// Moves probabilities; keeps its memory from one position to the next.
class Mixer {
 public:
  /// Move the calibrated candidates of a position; `reach`: the probability of the path to it. Of those that a path is
  /// too improbable for to be scored, all are scaled alike.
  void mix(const Weights& weights, const Sources& sources, const MatchedContexts& found, bool is_inside, double reach,
           Mixture& mixture);

 private:
  Observer observer_;
  Network network_;
};

}  // namespace speculant::mixer
