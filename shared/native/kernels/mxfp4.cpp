#include "kernels/mxfp4.hpp"

#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "neural/vectors.hpp"

namespace speculant {
namespace {

constexpr std::size_t kBytes = kMxfp4Block / 2;
constexpr std::array<float, 8> kMagnitudes = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

struct Pair {
  float low, high;
};

constexpr float value_of(std::size_t half) { return half < 8 ? kMagnitudes[half] : -kMagnitudes[half - 8]; }

/// The two numbers of every byte: a table takes a third of the time of the computation.
constexpr std::array<Pair, 256> kPairs = [] {
  std::array<Pair, 256> pairs{};
  for (std::size_t byte = 0; byte < pairs.size(); ++byte) pairs[byte] = {value_of(byte & 15), value_of(byte >> 4)};
  return pairs;
}();

SPECULANT_INLINE float scale_of(std::uint8_t exponent) {
  constexpr std::uint32_t least = 1U << 22;  // 2^-127, which is subnormal
  return std::bit_cast<float>(exponent == 0 ? least : static_cast<std::uint32_t>(exponent) << 23);
}

SPECULANT_INLINE void store(float value, float& into) { into = value; }
SPECULANT_INLINE void store(float value, std::uint16_t& into) {  // exact, because the numbers have three digits
  into = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
}

template <class Number>
SPECULANT_INLINE void decode_blocks(const std::uint8_t* packed, const std::uint8_t* exponents, std::size_t num_blocks,
                                    Number* numbers) {
  for (std::size_t block = 0; block < num_blocks; ++block, packed += kBytes, numbers += kMxfp4Block) {
    const float scale = scale_of(exponents[block]);
    std::array<float, kMxfp4Block> values;
    for (std::size_t index = 0; index < kBytes; ++index) {
      std::memcpy(&values[2 * index], &kPairs[packed[index]], sizeof(Pair));
    }
    for (std::size_t index = 0; index < kMxfp4Block; ++index) store(values[index] * scale, numbers[index]);
  }
}

SPECULANT_WIDE void decode(const std::uint8_t* packed, const std::uint8_t* exponents, std::size_t num_blocks,
                           float* numbers) {
  decode_blocks(packed, exponents, num_blocks, numbers);
}

SPECULANT_WIDE void decode(const std::uint8_t* packed, const std::uint8_t* exponents, std::size_t num_blocks,
                           std::uint16_t* numbers) {
  decode_blocks(packed, exponents, num_blocks, numbers);
}

}  // namespace

template <class Number>
void decode_mxfp4(std::span<const std::uint8_t> packed, std::span<const std::uint8_t> exponents,
                  std::span<Number> numbers) {
  if (packed.size() != exponents.size() * kBytes || numbers.size() != exponents.size() * kMxfp4Block) {
    throw std::invalid_argument("give 16 bytes and space for 32 numbers for each exponent");
  }
  decode(packed.data(), exponents.data(), exponents.size(), numbers.data());
}

template void decode_mxfp4(std::span<const std::uint8_t>, std::span<const std::uint8_t>, std::span<float>);
template void decode_mxfp4(std::span<const std::uint8_t>, std::span<const std::uint8_t>, std::span<std::uint16_t>);

}  // namespace speculant
