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

// Eight floats that the processor handles together, so that the sums of a row stay in its registers.
constexpr std::size_t kLanes = 8, kVectors = kWidth / kLanes;
using Lanes [[gnu::vector_size(sizeof(float) * kLanes)]] = float;
/// The same type, as stored in memory.
using Stored [[gnu::vector_size(sizeof(float) * kLanes), gnu::aligned(alignof(float)), gnu::may_alias]] = float;

struct Sum {
  Lanes parts[kVectors];
};

SPECULANT_INLINE void begin(Sum& sum, const Row& row) {
  const Stored* stored = reinterpret_cast<const Stored*>(row.data());
  for (std::size_t part = 0; part < kVectors; ++part) sum.parts[part] = stored[part];
}

SPECULANT_INLINE void add_scaled(Sum& sum, float factor, const Row& row) {
  const Stored* stored = reinterpret_cast<const Stored*>(row.data());
  for (std::size_t part = 0; part < kVectors; ++part) sum.parts[part] += factor * stored[part];
}

/// Add the network's output for the candidates to their scores.
SPECULANT_WIDE void score(const Weights& weights, const Features& features, Row* hidden, float* scores) {
  Sum common, output;
  begin(common, weights.bias);
  begin(output, weights.output);
  for (const auto& [feature, value] : features.common) add_scaled(common, value, weights.hidden[feature]);
  for (std::size_t each = 0; each < features.scores.size(); ++each) {
    Sum sum = common;
    float linear = features.scores[each];
    for (const auto& [feature, value] : features.own[each]) {
      add_scaled(sum, value, weights.hidden[feature]);
      linear += value * weights.linear[feature];
    }
    Stored* active = reinterpret_cast<Stored*>(hidden[each].data());
    Lanes products = {};
    for (std::size_t part = 0; part < kVectors; ++part) {
      sum.parts[part] = sum.parts[part] > 0.0F ? sum.parts[part] : Lanes{};
      products += sum.parts[part] * output.parts[part];
      active[part] = sum.parts[part];
    }
    for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane) products[lane] += products[lane + half];
    }
    scores[each] = linear + products[0];
  }
}

/// Turn scores into powers of 2; the largest is 1.
SPECULANT_WIDE void raise(float* scores, std::size_t size, float best) {
  for (std::size_t each = 0; each < size; ++each) scores[each] = neural::exponential((scores[each] - best) * kOctave);
}

}  // namespace

static_assert(sizeof(Weights) == sizeof(float) * (kNumFeatures * (kWidth + 1) + 2 * kWidth), "no gaps");

Weights read_weights(std::span<const float> values) {
  const auto is_usual = [](float value) { return value >= -kLargestWeight && value <= kLargestWeight; };
  if (values.size() != kNumWeights || !std::all_of(values.begin(), values.end(), is_usual)) {
    throw std::invalid_argument("not weights of the mixer");
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
