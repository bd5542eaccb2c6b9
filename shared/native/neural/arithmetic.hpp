// Elementary functions with the same result on every machine, which the standard library does not guarantee: plain sums
// and products in a fixed order. Also random numbers for training.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "neural/vectors.hpp"
#include "random_stream.hpp"

namespace speculant::neural {

/// e ^ value for value <= 0, to seven digits. Written for loops that compilers vectorise.
SPECULANT_INLINE float exponential(float value) {
  value = value < -80.0F ? -80.0F : value;
  const auto octaves = static_cast<std::int32_t>(value * 1.44269504F - 0.5F);
  const auto whole = static_cast<float>(octaves);
  const float rest = (value - whole * 0.693359375F) + whole * 2.12194440e-4F;  // ln 2 in two parts
  // Taylor's series is accurate enough between -0.35 and 0.35.
  float sum = (1.0F / 5040 * rest + 1.0F / 720) * rest + 1.0F / 120;
  sum = ((sum * rest + 1.0F / 24) * rest + 1.0F / 6) * rest + 0.5F;
  sum = (sum * rest + 1.0F) * rest + 1.0F;
  return sum * std::bit_cast<float>((octaves + 127) << 23);
}

/// The natural logarithm of a positive, normal number, to about seven digits.
inline double logarithm(double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  auto octaves = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023);
  auto rest = std::bit_cast<double>((bits & 0x000F'FFFF'FFFF'FFFF) | 0x3FF0'0000'0000'0000);
  if (rest > 1.41421356) rest *= 0.5, octaves += 1.0;
  const double ratio = (rest - 1.0) / (rest + 1.0), square = ratio * ratio;
  double sum = ((1.0 / 11 * square + 1.0 / 9) * square + 1.0 / 7) * square + 1.0 / 5;
  sum = (sum * square + 1.0 / 3) * square + 1.0;
  return octaves * 0.69314718055994531 + 2.0 * ratio * sum;
}

/// value ^ 0.75; square roots are exact everywhere.
inline double three_quarters_power(double value) { return std::sqrt(value) * std::sqrt(std::sqrt(value)); }

/// A sequence of random words.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(seed) {}
  std::uint64_t word() { return random_stream::mix(state_ += random_stream::kGolden); }
  /// A whole number below `bound`, at most 2^32.
  std::uint64_t below(std::uint64_t bound) { return (word() >> 32) * bound >> 32; }
  /// Approximately a normal distribution with deviation 1: a sum of four uniform numbers.
  float normal() {
    const std::uint64_t bits = word();
    std::int32_t sum = -2 * 65'535;
    for (int part = 0; part < 64; part += 16) sum += static_cast<std::int32_t>(bits >> part & 0xFFFF);
    return static_cast<float>(sum) * static_cast<float>(1.7320508 / 65'536);
  }

 private:
  std::uint64_t state_;
};

}  // namespace speculant::neural
