#include "verify/sampling.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numbers>

#include "random_stream.hpp"

namespace speculant {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kNoiseBits = 52;  // of a word that become noise, which hence is below 53 ln 2

// Numbers in [0, 1] fall into buckets by the first bits of their form; one to spare is for rounding above 1.
constexpr int kBucketShift = 19;
constexpr std::uint32_t kBuckets = (std::bit_cast<std::uint32_t>(1.0F) >> kBucketShift) + 2;

std::uint32_t bucket_of(float probability) {
  return std::min(std::bit_cast<std::uint32_t>(probability) >> kBucketShift, kBuckets - 1);
}

}  // namespace

std::pair<std::int64_t, double> largest_sum(std::span<const float> scores, std::uint64_t noise_key) {
  std::int64_t chosen = 0;
  double best = -kInfinity;
  for (std::size_t token = 0; token < scores.size(); ++token) {
    const double score = scores[token];
    const double margin = (score - best) * std::numbers::log2e;
    if (margin < -1.0 - kNoiseBits) continue;
    const std::uint64_t word = noise_word(noise_key, token);
    // Noise -log(-log u) is at most -log(1 - u). So a token can only win if 1 - u < exp(score - best), and a power of
    // two that is not smaller than that is a comparison of the word's first bits: hardly any token needs logarithms.
    if (margin <= 0) {
      const int shift = std::max(0, kNoiseBits + static_cast<int>(margin));
      if (~word >> (64 - kNoiseBits) >> shift != 0) continue;
    } else if (!(score < kInfinity)) {
      return {static_cast<std::int64_t>(token), std::numeric_limits<double>::quiet_NaN()};
    }
    const double sum = score + gumbel_noise(word);
    if (sum > best) chosen = static_cast<std::int64_t>(token), best = sum;
  }
  return {chosen, best};
}

NucleusBorder keep_above_border(std::span<const float> scores, std::span<const float> probabilities,
                                float most_removed, std::span<float> kept) {
  std::array<double, kBuckets> masses{};
  for (float probability : probabilities) masses[bucket_of(probability)] += static_cast<double>(probability);
  NucleusBorder border;
  std::uint32_t bucket = 0;
  while (bucket < kBuckets - 1 && static_cast<float>(border.mass + masses[bucket]) <= most_removed) {
    border.mass += masses[bucket++];
  }
  for (std::size_t token = 0; token < scores.size(); ++token) {
    const std::uint32_t own = bucket_of(probabilities[token]);
    kept[token] = own > bucket ? scores[token] : -std::numeric_limits<float>::infinity();
    if (own == bucket) border.tokens.push_back(static_cast<std::int64_t>(token));
  }
  return border;
}

}  // namespace speculant
