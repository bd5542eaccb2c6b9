// The last adjustment of a position's candidates: a small network that sees the evidence of every context for each of
// them.
//
// The mixture knows the reliability of each kind of context, and the bins know which sources agree. Neither knows how
// much text each context has seen, or how often this candidate followed it. features.hpp turns that into numbers, and
// network.hpp turns the numbers into new probabilities.
//
// The mixer runs only with the neural model: without the model, because it is absent or takes more time than it saves,
// there is no mixer either. The package contains the weights, which know no tokens. tests/models/train_mixer.py trained
// them on recorded outputs.
#pragma once

#include "mixer/network.hpp"

namespace speculant::mixer {

/// Adjusts probabilities; reuses its buffers.
class Mixer {
 public:
  /// Adjust the calibrated candidates of a position. `reach`: the probability of the path to it. Candidates that are
  /// too improbable on this path to be scored are all scaled by the same factor.
  void mix(const Weights& weights, const Sources& sources, const MatchedContexts& found, bool is_inside, double reach,
           Mixture& mixture);

 private:
  Observer observer_;
  Network network_;
};

}  // namespace speculant::mixer
