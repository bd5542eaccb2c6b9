// The network of the mixer: one hidden layer over the features of a candidate, and a linear part.
//
//   score(x) = log2 P(x) + linear . f(x) + output . max(hidden f(x) + bias, 0),   P'(x) proportional to 2 ^ score(x)
//
// for the candidates of a position and one that stands for all others: a log-linear mixture, as PAQ's mixers are
// (Mahoney 2005), with a hidden layer that sees which contexts agree. Sums are of 32-bit floats in one order, so that
// they are the same on every processor and in tests/support/mixer_reference.py.
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

/// Read weights as they lie in a file. Throws std::invalid_argument where they are not so many, or not all between -100
/// and 100, within which no sum leaves the range of floats.
Weights read_weights(std::span<const float> values);

/// Scores candidates; keeps its memory from one position to the next.
class Network {
 public:
  /// The probabilities of the candidates, and of all others.
  std::span<const float> mix(const Weights& weights, const Features& features);
  /// The hidden layer of each of them.
  std::span<const Row> hidden() const { return hidden_; }

 private:
  std::vector<Row> hidden_;
  std::vector<float> scores_;
};

}  // namespace speculant::mixer
