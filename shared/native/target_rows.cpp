#include "target_rows.hpp"

#include <algorithm>

namespace speculant {
namespace {

/// Key of a context: the last token, or the last two tokens.
std::int64_t key_of(Token before, Token last, int length) {
  return length == 1 ? last : (std::int64_t{before} + 1) << 24 | last;
}

std::size_t slot_of(std::int64_t key) {
  const std::uint64_t hash = static_cast<std::uint64_t>(key) * kHashFactor;
  return static_cast<std::size_t>(hash >> 40) % TargetTopK::kNumSlots;
}

constexpr TargetTopK::Rows kNoRows = [] {
  TargetTopK::Rows rows{};
  for (auto& row : rows) row.fill(-1);
  return rows;
}();

bool is_context(const Token* end, int length) { return end[-1] >= 0 && (length == 1 || end[-2] >= 0); }

/// Put a row into the slots of its contexts, which `slot_at` finds by index.
template <class SlotAt>
void put_row(Token before, Token last, std::span<const Token> row, SlotAt&& slot_at) {
  if (last < 0 || row.empty() || row.front() < 0) return;
  for (int length = 1; length <= (before >= 0 ? 2 : 1); ++length) {
    const std::int64_t key = key_of(before, last, length);
    TargetTopK::Slot& slot = slot_at(slot_of(key));
    if (slot.key != key) slot = {key, kNoRows};
    std::shift_right(slot.rows.begin(), slot.rows.end(), 1);
    slot.rows.front().fill(-1);
    std::copy_n(row.begin(), std::min<std::size_t>(row.size(), kRowWidth), slot.rows.front().begin());
  }
}

}  // namespace

void TargetTopK::put(Token before, Token last, std::span<const Token> row) {
  is_changed = true;
  if (slots_.empty()) slots_.resize(kNumSlots, {-1, kNoRows});
  put_row(before, last, row, [&](std::size_t index) -> Slot& { return slots_[index]; });
}

const TargetTopK::Rows* TargetTopK::find(const Token* end, int length) const {
  if (slots_.empty() || !is_context(end, length)) return nullptr;
  const std::int64_t key = key_of(end[-2], end[-1], length);
  const Slot& slot = slots_[slot_of(key)];
  return slot.key == key ? &slot.rows : nullptr;
}

void TargetTopK::restore(std::size_t index, const Slot& slot) {
  if (slots_.empty()) slots_.resize(kNumSlots, {-1, kNoRows});
  slots_.at(index) = slot;
}

void TargetTopKOverlay::put(Token before, Token last, std::span<const Token> row) {
  put_row(before, last, row, [&](std::size_t index) -> TargetTopK::Slot& { return own(index); });
}

const TargetTopK::Rows* TargetTopKOverlay::find(const Token* end, int length) const {
  if (own_.empty() || !is_context(end, length)) return table_.find(end, length);
  const std::int64_t key = key_of(end[-2], end[-1], length);
  const std::uint32_t found = places_[place_of(slot_of(key))];
  if (found == 0) return table_.find(end, length);
  const TargetTopK::Slot& slot = own_[found - 1].slot;
  return slot.key == key ? &slot.rows : nullptr;
}

std::size_t TargetTopKOverlay::place_of(std::size_t index) const {
  const std::size_t mask = places_.size() - 1;
  std::size_t place = index & mask;
  while (places_[place] != 0 && own_[places_[place] - 1].index != index) place = (place + 1) & mask;
  return place;
}

TargetTopK::Slot& TargetTopKOverlay::own(std::size_t index) {
  if (2 * (own_.size() + 1) > places_.size()) {
    places_.assign(std::max<std::size_t>(2 * places_.size(), 16), 0);
    for (std::size_t each = 0; each < own_.size(); ++each) {
      places_[place_of(own_[each].index)] = static_cast<std::uint32_t>(each) + 1;
    }
  }
  std::uint32_t& found = places_[place_of(index)];
  if (found == 0) {
    const TargetTopK::Slot slot = table_.slots_.empty() ? TargetTopK::Slot{-1, kNoRows} : table_.slots_[index];
    own_.push_back({static_cast<std::uint32_t>(index), slot});
    found = static_cast<std::uint32_t>(own_.size());
  }
  return own_[found - 1].slot;
}

std::int64_t TargetTopKOverlay::num_bytes() const {
  return static_cast<std::int64_t>(own_.capacity() * sizeof(Own) + places_.capacity() * sizeof(std::uint32_t));
}

}  // namespace speculant
