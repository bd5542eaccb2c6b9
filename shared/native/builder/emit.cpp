#include "builder/emit.hpp"

#include <algorithm>

namespace speculant {

Emitter::Emitter(const KeyLayout& layout, std::size_t capacity)
    : layout_(layout),
      capacity_(capacity),
      levels_(static_cast<std::size_t>(layout.length)),
      last_key_(static_cast<std::size_t>(layout.num_words)) {
  for (BuiltLevel& level : levels_) level.buffer = std::make_unique_for_overwrite<Record[]>(capacity);
}

/// How many leading tokens a key shares with the last one.
std::int64_t Emitter::num_shared(const std::uint64_t* key) const {
  for (std::int64_t word = 0; word < layout_.num_words; ++word) {
    const std::uint64_t difference = key[word] ^ last_key_[static_cast<std::size_t>(word)];
    if (difference == 0) continue;
    std::int64_t shared = word * layout_.per_word;
    while (difference >> layout_.shift_of(shared) == 0) ++shared;
    return shared;
  }
  return layout_.length;
}

std::size_t Emitter::emit(std::span<const std::uint64_t> keys, Weights weights, std::size_t row) {
  const auto num_words = static_cast<std::size_t>(layout_.num_words);
  const std::size_t num_keys = keys.size() / num_words;
  for (BuiltLevel& level : levels_) level.filled = 0;
  std::size_t fullest = 0;
  for (; row < num_keys && fullest < capacity_; ++row) {
    const std::uint64_t* const key = keys.data() + row * num_words;
    std::int64_t depth = num_shared(key);
    for (; depth < layout_.length; ++depth) {
      const std::uint64_t value = layout_.value(key, depth);
      if (value == 0) break;
      BuiltLevel& level = levels_[static_cast<std::size_t>(depth)];
      const bool is_leaf = depth + 1 == layout_.length;
      level.buffer[level.filled++] = {
          static_cast<std::uint32_t>(value - 1), static_cast<std::uint32_t>(total_ - level.skipped),
          is_leaf ? 0 : static_cast<std::uint32_t>(levels_[static_cast<std::size_t>(depth) + 1].num_nodes), 0};
      ++level.num_nodes;
      fullest = std::max(fullest, level.filled);
    }
    const std::int64_t weight = weights.empty() ? 1 : weights[row];
    total_ += weight;
    for (depth = layout_.length; depth > 0 && layout_.value(key, depth - 1) == 0; --depth) {
      levels_[static_cast<std::size_t>(depth) - 1].skipped += weight;
    }
    std::copy_n(key, num_words, last_key_.begin());
  }
  return row;
}

std::vector<std::int64_t> Emitter::num_nodes() const {
  std::vector<std::int64_t> sizes;
  for (const BuiltLevel& level : levels_) sizes.push_back(level.num_nodes);
  return sizes;
}

std::vector<std::int64_t> Emitter::totals() const {
  std::vector<std::int64_t> sums;
  for (const BuiltLevel& level : levels_) sums.push_back(total_ - level.skipped);
  return sums;
}

}  // namespace speculant
