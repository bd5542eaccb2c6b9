// How the weights of the mixer are found: by Adagrad (Duchi et al. 2011) on positions of recorded outputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mixer/network.hpp"

namespace speculant::mixer {

/// A position, and which of its candidates came, the last of which is all others.
struct Example {
  Example(const Features& seen, std::size_t truth);
  Features features() const { return {common, own, scores}; }

  std::vector<Value> common, values;
  std::vector<std::span<const Value>> own;  // of the values
  std::vector<float> scores;
  std::size_t truth;
};
using Examples = std::vector<Example>;

/// Train on examples in an order that `seed` decides, so many times. `rate` falls linearly, from one pass to the next.
Weights train(std::span<const Examples* const> examples, std::uint64_t seed, int num_passes, float rate);

/// How many natural units of information a true candidate costs on average, before the network and after it. Others
/// than those that are scored cost as much as one in a thousand.
std::array<double, 2> losses(const Weights& weights, const Examples& examples);

}  // namespace speculant::mixer
