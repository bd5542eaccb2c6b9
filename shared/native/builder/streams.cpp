#include "builder/streams.hpp"

#include <algorithm>
#include <compare>
#include <stdexcept>

namespace speculant {

KeyReader::KeyReader(const Trie& trie, int bits, std::int64_t min_count)
    : trie_(trie), layout_(trie.max_order() + 1, bits), min_count_(min_count) {
  rest_.push_back({0, trie.level(1).size});
  key_.resize(static_cast<std::size_t>(layout_.num_words));
}

void KeyReader::set_token(std::int64_t depth, Token token) {
  const auto word = static_cast<std::size_t>(layout_.word_of(depth));
  const int shift = layout_.shift_of(depth);
  const std::uint64_t before = key_[word] >> shift >> layout_.bits << layout_.bits;
  key_[word] = (before | static_cast<std::uint64_t>(token + 1)) << shift;
  std::fill(key_.begin() + static_cast<std::ptrdiff_t>(word) + 1, key_.end(), 0);
}

/// What remains of an n-gram's count without the children that are kept.
std::int64_t KeyReader::own_count(std::int64_t count, std::int64_t length, Range children) const {
  if (length == layout_.length || children.empty()) return count;
  const Level& next = trie_.level(length + 1);
  if (min_count_ == 1) return count - next.total(children);
  for (std::int64_t child = children.low; child < children.high; ++child) {
    const std::int64_t each = next.count(child);
    if (each >= min_count_) count -= each;
  }
  return count;
}

std::size_t KeyReader::read(std::span<std::uint64_t> keys, std::span<std::int64_t> weights) {
  std::size_t found = 0;
  while (found < weights.size()) {
    while (!rest_.empty() && rest_.back().empty()) rest_.pop_back();
    if (rest_.empty()) break;
    const std::int64_t length = std::ssize(rest_), node = rest_.back().low++;
    const Level& level = trie_.level(length);
    const std::int64_t count = level.count(node);
    if (count < min_count_) continue;
    const Range children = length < layout_.length ? trie_.children({length, node}) : Range{};
    set_token(length - 1, level.token(node));
    const std::int64_t own = own_count(count, length, children);
    if (own > 0) {
      std::ranges::copy(key_, keys.data() + found * key_.size());
      weights[found++] = own;
    }
    if (length < layout_.length) rest_.push_back(children);
  }
  return found;
}

std::size_t merge_keys(WeightedKeys& first, WeightedKeys& second, std::size_t num_words, std::span<std::uint64_t> keys,
                       std::span<std::int64_t> weights) {
  std::size_t found = 0;
  while (!first.empty() && !second.empty()) {
    const auto key = first.keys.subspan(first.next * num_words, num_words);
    const auto other = second.keys.subspan(second.next * num_words, num_words);
    const auto order = std::lexicographical_compare_three_way(key.begin(), key.end(), other.begin(), other.end());
    std::ranges::copy(order <= 0 ? key : other, keys.data() + found * num_words);
    std::int64_t weight = 0;
    if (order <= 0) weight += first.weights[first.next++];
    if (order >= 0) weight += second.weights[second.next++];
    if (weight != 0) weights[found++] = weight;  // else nothing is left of what was taken away
  }
  return found;
}

}  // namespace speculant
