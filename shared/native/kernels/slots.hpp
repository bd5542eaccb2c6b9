// Copies of keys and values between the slots of a cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace speculant {

/// A buffer of keys or values, `[rows, heads, slots, width]`, in units of two bytes.
struct SlotBuffer {
  std::span<std::int16_t> memory;
  std::size_t rows = 0, heads = 0, slots = 0, width = 0;
};

/// Copy slots of rows to other slots, one after another; the three arrays have the same size.
///
/// Throws std::invalid_argument, before anything moves, if the buffer has no such row or slot.
void move_slots(const SlotBuffer& buffer, std::span<const std::int64_t> rows, std::span<const std::int64_t> source,
                std::span<const std::int64_t> target);

}  // namespace speculant
