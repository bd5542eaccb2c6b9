// Decoding of four-bit numbers, the published form of gpt-oss's experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace speculant {

/// Number of values that share an exponent.
inline constexpr std::size_t kMxfp4Block = 32;

/// Decode blocks of MXFP4 (OCP Microscaling Formats 1.0): E2M1 numbers, two per byte with the low half first, times two
/// to the power of the block's E8M0 exponent. All results are exact; with exponent 255 they are infinite or NaN.
///
/// `packed` has 16 bytes per exponent, and `numbers` has 32 elements per exponent, float or the bits of a bfloat16.
/// Throws std::invalid_argument if they have other sizes.
template <class Number>
void decode_mxfp4(std::span<const std::uint8_t> packed, std::span<const std::uint8_t> exponents,
                  std::span<Number> numbers);

}  // namespace speculant
