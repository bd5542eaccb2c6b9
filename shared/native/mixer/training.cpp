#include "mixer/training.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

#include "neural/arithmetic.hpp"
#include "neural/vectors.hpp"

namespace speculant::mixer {
namespace {

// Initial sums of squared gradients, which limit the first steps; and the standard deviation of the hidden layer's
// initial weights.
constexpr float kFirstSquare = 1e-3F, kDeviation = 0.15F;
constexpr double kLeastProbability = 1e-3;

class Trainer {
 public:
  explicit Trainer(std::uint64_t seed) {
    neural::Chance chance(seed);
    for (Row& row : weights_.hidden) {
      for (float& weight : row) weight = chance.normal() * kDeviation;
    }
    const auto squares = as_floats(squares_);
    std::fill(squares.begin(), squares.end(), kFirstSquare);
  }

  void learn(const Example& example, float rate) {
    const Features features = example.features();
    const auto probabilities = network_.mix(weights_, features);
    slopes_ = {};
    std::array<Row, kMostScored + 1> below;  // gradients of the hidden layer's sums
    for (std::size_t each = 0; each < probabilities.size(); ++each) {
      const float error = probabilities[each] - (each == example.truth ? 1.0F : 0.0F);
      const Row& hidden = network_.hidden()[each];
      for (std::size_t unit = 0; unit < kWidth; ++unit) {
        slopes_.output[unit] += error * hidden[unit];
        below[each][unit] = hidden[unit] > 0.0F ? error * weights_.output[unit] : 0.0F;
        slopes_.bias[unit] += below[each][unit];
      }
    }
    for (const auto& [feature, value] : features.common) add(slopes_.hidden[feature], value, slopes_.bias);
    for (std::size_t each = 0; each < probabilities.size(); ++each) {
      const float error = probabilities[each] - (each == example.truth ? 1.0F : 0.0F);
      for (const auto& [feature, value] : features.own[each]) {
        add(slopes_.hidden[feature], value, below[each]);
        slopes_.linear[feature] += value * error;
      }
    }
    step(as_floats(weights_), as_floats(squares_), as_floats(slopes_), rate);
  }

  /// The weights; weights of features that never occurred are 0.
  Weights finish() {
    for (std::size_t feature = 0; feature < kNumFeatures; ++feature) {
      const Row& squares = squares_.hidden[feature];
      const auto is_first = [](float square) { return square == kFirstSquare; };
      if (std::all_of(squares.begin(), squares.end(), is_first)) weights_.hidden[feature].fill(0.0F);
    }
    return weights_;
  }

 private:
  static std::span<float> as_floats(Weights& weights) { return {reinterpret_cast<float*>(&weights), kNumWeights}; }
  static void add(Row& sum, float factor, const Row& row) {
    for (std::size_t unit = 0; unit < kWidth; ++unit) sum[unit] += factor * row[unit];
  }
  SPECULANT_WIDE static void step(std::span<float> weights, std::span<float> squares, std::span<const float> slopes,
                                  float rate) {
    for (std::size_t each = 0; each < kNumWeights; ++each) {
      squares[each] += slopes[each] * slopes[each];
      weights[each] -= rate * slopes[each] / std::sqrt(squares[each]);
    }
  }

  Weights weights_ = {}, squares_ = {}, slopes_ = {};
  Network network_;
};

}  // namespace

Example::Example(const Features& seen, std::size_t truth)
    : common(seen.common.begin(), seen.common.end()),
      own(seen.own.begin(), seen.own.end()),
      scores(seen.scores.begin(), seen.scores.end()),
      truth(truth) {
  for (const auto& each : own) values.insert(values.end(), each.begin(), each.end());
  std::size_t end = 0;
  for (auto& each : own) each = std::span(values).subspan(end, each.size()), end += each.size();
}

Weights train(std::span<const Examples* const> examples, std::uint64_t seed, int num_passes, float rate) {
  std::vector<const Example*> order;
  for (const Examples* each : examples) {
    for (const Example& example : *each) order.push_back(&example);
  }
  const auto trainer = std::make_unique<Trainer>(seed);
  neural::Chance chance(seed + 1);
  for (int pass = 0; pass < num_passes; ++pass) {
    for (std::size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[chance.below(left)]);
    const float of_pass = rate * (1.0F - static_cast<float>(pass) / static_cast<float>(num_passes));
    for (const Example* example : order) trainer->learn(*example, of_pass);
  }
  return trainer->finish();
}

std::array<double, 2> losses(const Weights& weights, const Examples& examples) {
  Network network;
  std::array<double, 2> sums = {};
  for (const Example& example : examples) {
    const auto mixed = network.mix(weights, example.features());
    const bool is_scored = example.truth + 1 < example.scores.size();
    const double before = is_scored ? std::exp2(static_cast<double>(example.scores[example.truth])) : 0.0;
    const double after = is_scored ? static_cast<double>(mixed[example.truth]) : 0.0;
    sums[0] -= std::log(std::max(before, kLeastProbability)), sums[1] -= std::log(std::max(after, kLeastProbability));
  }
  const auto count = static_cast<double>(std::max<std::size_t>(examples.size(), 1));
  return {sums[0] / count, sums[1] / count};
}

}  // namespace speculant::mixer
