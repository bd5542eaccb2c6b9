#include "target_rows.hpp"

#include <algorithm>

namespace speculant {
namespace {

/// What names a context of the last token, or of the last two.
std::int64_t key_of(Token before, Token last, int length) {
  return length == 1 ? last : (std::int64_t{before} + 1) << 24 | last;
}

std::size_t slot_of(std::int64_t key) {
  const std::uint64_t hash = static_cast<std::uint64_t>(key) * 0x1E3779B97F4A7C15;
  return static_cast<std::size_t>(hash >> 40) % TargetRows::kNumSlots;
}

constexpr TargetRows::Rows kNoRows = [] {
  TargetRows::Rows rows{};
  for (auto& row : rows) row.fill(-1);
  return rows;
}();

}  // namespace

void TargetRows::put(Token before, Token last, std::span<const Token> row) {
  is_changed = true;
  if (slots_.empty()) slots_.resize(kNumSlots, {-1, kNoRows});
  if (last < 0 || row.empty() || row.front() < 0) return;
  for (int length = 1; length <= (before >= 0 ? 2 : 1); ++length) {
    const std::int64_t key = key_of(before, last, length);
    Slot& slot = slots_[slot_of(key)];
    if (slot.key != key) slot = {key, kNoRows};
    std::shift_right(slot.rows.begin(), slot.rows.end(), 1);
    slot.rows.front().fill(-1);
    std::copy_n(row.begin(), std::min<std::size_t>(row.size(), kRowWidth), slot.rows.front().begin());
  }
}

const TargetRows::Rows* TargetRows::find(const Token* end, int length) const {
  if (slots_.empty() || end[-1] < 0 || (length == 2 && end[-2] < 0)) return nullptr;
  const std::int64_t key = key_of(end[-2], end[-1], length);
  const Slot& slot = slots_[slot_of(key)];
  return slot.key == key ? &slot.rows : nullptr;
}

void TargetRows::restore(std::size_t index, const Slot& slot) {
  if (slots_.empty()) slots_.resize(kNumSlots, {-1, kNoRows});
  slots_.at(index) = slot;
}

}  // namespace speculant
