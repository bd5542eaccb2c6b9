// The mixer's network: one hidden layer over the features of a candidate, and a linear part.
//
//   score(x) = log2 P(x) + linear . f(x) + output . max(hidden f(x) + bias, 0),   P'(x) proportional to 2 ^ score(x)
//
// The scores are for the candidates of a position, and for one entry that stands for all others. It is a log-linear
// mixture like PAQ's mixers (Mahoney 2005), with a hidden layer that sees which contexts agree. Sums of 32-bit floats
// have a fixed order, so they are the same on every processor and in tests/support/mixer_reference.py.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "mixer/features.hpp"

namespace speculant::mixer {

inline constexpr std::size_t kWidth = 32;
using Row = std::array<float, kWidth>;

struct Weights {
  std::array<Row, kNumFeatures> hidden;
  Row bias, output;
  std::array<float, kNumFeatures> linear;
};
inline constexpr std::size_t kNumWeights = sizeof(Weights) / sizeof(float);

/// Read weights in the order of a file. Throws std::invalid_argument if their number is wrong, or not all are between
/// -100 and 100. Within these bounds no sum leaves the range of floats.
Weights read_weights(std::span<const float> values);

/// Scores candidates; reuses its buffers for the next position.
class Network {
 public:
  /// Return the probabilities of the candidates, and of all others together.
  std::span<const float> mix(const Weights& weights, const Features& features);
  /// The hidden layer of each entry of the latest result.
  std::span<const Row> hidden() const { return hidden_; }

 private:
  std::vector<Row> hidden_;
  std::vector<float> scores_;
};

}  // namespace speculant::mixer
