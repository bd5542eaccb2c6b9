#include "kernels/scores.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numbers>

#include "random_stream.hpp"

namespace speculant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMaxNoiseBits = 53;  // noise is below 53 ln 2, because 52 bits of a word become noise

// Numbers in [0, 1] fall into buckets by their first bits; an extra bucket is for rounding above 1. The first 13 bits
// are the sign, the exponent and four bits of the mantissa: 2,034 buckets, 16 KB of sums. A guess that balances the
// time to clear them against the number of tokens at the border.
constexpr int kBucketShift = 19;
constexpr std::uint32_t kBuckets = (std::bit_cast<std::uint32_t>(1.0F) >> kBucketShift) + 2;

std::uint32_t bucket_of(float probability) {
  return std::min(std::bit_cast<std::uint32_t>(probability) >> kBucketShift, kBuckets - 1);
}

}  // namespace

std::pair<std::int64_t, double> gumbel_argmax(std::span<const float> scores, std::uint64_t noise_key) {
  std::int64_t chosen = 0;
  double best = -kInfinity, hopeless = -kInfinity;
  for (std::size_t token = 0; token < scores.size(); ++token) {
    const double score = scores[token];
    if (score <= hopeless) continue;
    const std::uint64_t word = noise_word(noise_key, token);
    // Noise -log(-log u) is at most -log(1 - u), so a token can only win if 1 - u < exp(score - best). With a power of
    // two as the upper bound, this compares only the word's first bits, and hardly any token needs logarithms.
    if (score <= best) {
      const int shift = kMaxNoiseBits + static_cast<int>((score - best) * std::numbers::log2e);
      if (~word >> (64 - kMaxNoiseBits) >> shift != 0) continue;
    } else if (!(score < kInfinity)) {
      return {static_cast<std::int64_t>(token), std::numeric_limits<double>::quiet_NaN()};
    }
    const double sum = score + gumbel_noise(word);
    if (sum > best) {
      chosen = static_cast<std::int64_t>(token), best = sum;
      hopeless = best - kMaxNoiseBits * std::numbers::ln2;
    }
  }
  return {chosen, best};
}

TopPBorder top_p_filter(std::span<const float> scores, std::span<const float> probabilities, float most_removed,
                        std::span<float> kept) {
  std::array<double, kBuckets> masses{};
  for (float probability : probabilities) masses[bucket_of(probability)] += static_cast<double>(probability);
  TopPBorder border;
  std::uint32_t bucket = 0;
  while (bucket < kBuckets - 1 && static_cast<float>(border.mass + masses[bucket]) <= most_removed) {
    border.mass += masses[bucket++];
  }
  const float first_above = std::bit_cast<float>((bucket + 1) << kBucketShift);
  for (std::size_t token = 0; token < scores.size(); ++token) {
    kept[token] = probabilities[token] >= first_above ? scores[token] : -std::numeric_limits<float>::infinity();
  }
  for (std::size_t token = 0; token < scores.size(); ++token) {
    if (bucket_of(probabilities[token]) == bucket) border.tokens.push_back(static_cast<std::int64_t>(token));
  }
  return border;
}

}  // namespace speculant
