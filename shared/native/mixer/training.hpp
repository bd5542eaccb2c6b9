// Training of the mixer's weights by Adagrad (Duchi et al. 2011), on positions of recorded outputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mixer/network.hpp"

namespace speculant::mixer {

/// A position, and the index of its true candidate; the last index stands for all others.
struct Example {
  Example(const Features& seen, std::size_t truth);
  Features features() const { return {common, own, scores}; }

  std::vector<Value> common, values;
  std::vector<std::span<const Value>> own;  // spans of `values`
  std::vector<float> scores;
  std::size_t truth;
};
using Examples = std::vector<Example>;

/// Train on examples for `num_passes` passes, in an order that depends on `seed`. `rate` falls linearly from pass to
/// pass.
Weights train(std::span<const Examples* const> examples, std::uint64_t seed, int num_passes, float rate);

/// Mean loss of the true candidate in nats, before and after the network. Tokens that are not scored count with a
/// probability of one in a thousand.
std::array<double, 2> losses(const Weights& weights, const Examples& examples);

}  // namespace speculant::mixer
