#include "kernels/slots.hpp"

#include <algorithm>
#include <stdexcept>

namespace speculant {

void move_slots(const SlotBuffer& buffer, std::span<const std::int64_t> rows, std::span<const std::int64_t> source,
                std::span<const std::int64_t> target) {
  const auto all_below = [](std::span<const std::int64_t> indices, std::size_t size) {
    return std::ranges::all_of(indices, [&](std::int64_t index) { return static_cast<std::uint64_t>(index) < size; });
  };
  if (!all_below(rows, buffer.rows) || !all_below(source, buffer.slots) || !all_below(target, buffer.slots)) {
    throw std::invalid_argument("the buffer has no such row or slot");
  }
  for (std::size_t index = 0; index < rows.size(); ++index) {
    if (source[index] == target[index]) continue;
    const std::size_t first_slot = static_cast<std::size_t>(rows[index]) * buffer.heads * buffer.slots;
    for (std::size_t head = 0; head < buffer.heads; ++head) {
      const auto slot_of = [&](std::int64_t slot) {
        const std::size_t index_of_slot = first_slot + head * buffer.slots + static_cast<std::size_t>(slot);
        return buffer.memory.subspan(index_of_slot * buffer.width, buffer.width);
      };
      std::ranges::copy(slot_of(source[index]), slot_of(target[index]).begin());
    }
  }
}

}  // namespace speculant
