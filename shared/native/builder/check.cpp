// Every check relies only on facts that earlier checks have proven, so damaged arrays are safe to check.
#include <algorithm>

#include "builder/records.hpp"

namespace speculant {
namespace {

/// Whether tokens are in the vocabulary, counts are positive, and ranges are contiguous up to the last child.
bool columns_are_sound(const Trie& trie, std::int64_t length) {
  const Level& level = trie.level(length);
  const bool has_children = length <= trie.max_order();
  const std::uint32_t *first = level.record(0), *last = level.record(level.size);
  if (first[kCumulative] != 0 || last[kToken] != 0 || last[level.width - 1] != 0) return false;
  if (has_children && (first[kChild] != 0 || last[kChild] != trie.level(length + 1).size)) return false;
  for (std::int64_t node = 0; node < level.size; ++node) {
    const std::uint32_t *record = level.record(node), *next = level.record(node + 1);
    const std::uint32_t token = has_children ? record[kToken] & kTokenMask : record[kToken];
    if (token >= static_cast<std::uint32_t>(trie.vocabulary_size())) return false;
    if (record[kCumulative] >= next[kCumulative]) return false;
    if (has_children && record[kChild] > next[kChild]) return false;
  }
  return true;
}

bool unigrams_are_sound(const Level& level) {
  for (std::int64_t node = 0; node < level.size; ++node) {
    if (level.record(node)[kLink] != 0 || (node > 0 && level.token(node) <= level.token(node - 1))) return false;
  }
  return level.record(level.size)[kLink] == 0;
}

bool index_is_sound(const Level& level, std::span<const std::uint32_t> index) {
  std::int64_t node = 0;
  for (std::size_t token = 0; token < index.size(); ++token) {
    while (node < level.size && level.token(node) < static_cast<Token>(token)) ++node;
    if (index[token] != node) return false;
  }
  return true;
}

/// Whether children ascend, the sum of their counts does not exceed their context's, and the most frequent one is
/// marked.
bool children_are_sound(const Level& level, const Level& next) {
  for (std::int64_t node = 0; node < level.size; ++node) {
    const Range children = children_of(level, node);
    if (next.total(children) > level.count(node)) return false;
    for (std::int64_t child = children.low + 1; child < children.high; ++child) {
      if (next.token(child) <= next.token(child - 1)) return false;
    }
    const std::int64_t offset = std::min(next.argmax(children) - children.low, kArgmaxOverflow);
    if (level.record(node)[kToken] >> kTokenBits != offset) return false;
  }
  return true;
}

/// Whether the suffix link of every child points to the child of its parent's suffix link with the same token.
bool links_are_sound(const Trie& trie, std::int64_t length) {
  const Level &level = trie.level(length), &next = trie.level(length + 1);
  for (std::int64_t node = 0; node < level.size; ++node) {
    Range among{0, level.size};  // the suffix of two tokens is any token of level 1
    if (length > 1) among = children_of(trie.level(length - 1), level.record(node)[kLink]);
    const Range children = children_of(level, node);
    for (std::int64_t child = children.low; child < children.high; ++child) {
      const std::int64_t link = next.record(child)[next.width - 1];
      if (link < among.low || link >= among.high || level.token(link) != next.token(child)) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<std::string> find_damage(const Trie& trie, std::span<const std::uint32_t> unigram_index) {
  for (std::int64_t length = 1; length <= trie.max_order() + 1; ++length) {
    if (!columns_are_sound(trie, length)) {
      return "the n-grams of " + std::to_string(length) + " tokens are out of bounds";
    }
  }
  if (!unigrams_are_sound(trie.level(1))) return "its tokens are out of order";
  if (!index_is_sound(trie.level(1), unigram_index)) return "its table of tokens is wrong";
  for (std::int64_t length = 1; length <= trie.max_order(); ++length) {
    if (!children_are_sound(trie.level(length), trie.level(length + 1))) {
      return "successors of the contexts of " + std::to_string(length) + " tokens are wrong";
    }
    if (!links_are_sound(trie, length)) {
      return "links of the n-grams of " + std::to_string(length + 1) + " tokens are wrong";
    }
  }
  return {};
}

}  // namespace speculant
