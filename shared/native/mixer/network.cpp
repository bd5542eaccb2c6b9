#include "mixer/network.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "neural/arithmetic.hpp"
#include "neural/vectors.hpp"

namespace speculant::mixer {
namespace {

constexpr float kLargestWeight = 100.0F;
constexpr float kOctave = 0.69314718F;

SPECULANT_INLINE void add_scaled(Row& sum, float factor, const Row& row) {
  for (std::size_t unit = 0; unit < kWidth; ++unit) sum[unit] += factor * row[unit];
}

/// Add what the network makes of candidates to their scores.
SPECULANT_WIDE void score(const Weights& weights, const Features& features, Row* hidden, float* scores) {
  Row common = weights.bias;
  for (const auto& [feature, value] : features.common) add_scaled(common, value, weights.hidden[feature]);
  const std::size_t size = features.scores.size();
  for (std::size_t each = 0; each < size; ++each) hidden[each] = common, scores[each] = features.scores[each];
  for (const auto& [candidate, feature, value] : features.own) {
    add_scaled(hidden[candidate], value, weights.hidden[feature]);
    scores[candidate] += value * weights.linear[feature];
  }
  for (std::size_t each = 0; each < size; ++each) {
    std::array<float, 8> parts = {};  // a vector's worth of sums
    for (std::size_t unit = 0; unit < kWidth; ++unit) {
      const float active = hidden[each][unit] > 0.0F ? hidden[each][unit] : 0.0F;
      hidden[each][unit] = active;
      parts[unit % 8] += active * weights.output[unit];
    }
    for (std::size_t half = 4; half > 0; half /= 2) {
      for (std::size_t part = 0; part < half; ++part) parts[part] += parts[part + half];
    }
    scores[each] += parts[0];
  }
}

/// Make scores into powers of 2, of which the largest is 1.
SPECULANT_WIDE void raise(float* scores, std::size_t size, float best) {
  for (std::size_t each = 0; each < size; ++each) scores[each] = neural::exponential((scores[each] - best) * kOctave);
}

}  // namespace

static_assert(sizeof(Weights) == sizeof(float) * (kNumFeatures * (kWidth + 1) + 2 * kWidth), "no gaps");

Weights read_weights(std::span<const float> values) {
  const auto is_usual = [](float value) { return value >= -kLargestWeight && value <= kLargestWeight; };
  if (values.size() != kNumWeights || !std::all_of(values.begin(), values.end(), is_usual)) {
    throw std::invalid_argument("these are no weights of the mixer");
  }
  Weights weights;
  std::memcpy(&weights, values.data(), sizeof weights);
  return weights;
}

std::span<const float> Network::mix(const Weights& weights, const Features& features) {
  hidden_.resize(features.scores.size());
  scores_.resize(features.scores.size());
  score(weights, features, hidden_.data(), scores_.data());
  const float best = *std::max_element(scores_.begin(), scores_.end());
  raise(scores_.data(), scores_.size(), best);
  float total = 0.0F;
  for (const float power : scores_) total += power;
  for (float& score : scores_) score /= total;
  return scores_;
}

}  // namespace speculant::mixer
