// Counter-based random numbers: a pure function of (seed, position, stream); random_stream.py defines them.
#pragma once

#include <cmath>
#include <cstdint>

namespace speculant {

inline constexpr std::uint64_t kProposalStream = 1, kTreeStream = 4;

namespace random_stream {

inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15, kFirstFactor = 0xBF58476D1CE4E5B9,
                               kSecondFactor = 0x94D049BB133111EB, kOffset = 0xD1B54A32D192ED03;

inline std::uint64_t mix(std::uint64_t value) {
  value = (value ^ value >> 30) * kFirstFactor;
  value = (value ^ value >> 27) * kSecondFactor;
  return value ^ value >> 31;
}

}  // namespace random_stream

/// A number in [0, 1) with 53 random bits.
inline double uniform(std::uint64_t seed, std::uint64_t position, std::uint64_t stream) {
  using namespace random_stream;
  std::uint64_t word = mix(seed + kGolden * (stream + 1));
  word = mix(word ^ mix(position * kGolden + kOffset));
  return static_cast<double>(word >> 11) * 0x1p-53;
}

/// The 64 bits that are mixed with every token of a position.
inline std::uint64_t noise_key(std::uint64_t seed, std::uint64_t position) {
  using namespace random_stream;
  return mix(mix(seed + kGolden) ^ (position * kGolden + kFirstFactor));
}

/// The 64 random bits of a token.
inline std::uint64_t noise_word(std::uint64_t key, std::uint64_t token) {
  using namespace random_stream;
  return mix(key ^ (token * kFirstFactor + kGolden));
}

/// The Gumbel noise from the first 52 bits of a word; never infinite.
inline double gumbel_noise(std::uint64_t word) {
  return -std::log(-std::log((static_cast<double>(word >> 12) + 0.5) * 0x1p-52));
}

}  // namespace speculant
