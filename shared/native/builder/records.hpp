// The columns of records, as graph/layout.py draws them; the last passes over a trie, and the check of a whole one.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "trie.hpp"

namespace speculant {

/// A record of levels 1 to N, and of any level while a build counts.
struct Record {
  std::uint32_t token, cumulative, child, link;
};

/// A level while it is made.
struct MutableLevel : Level {
  std::uint32_t& link(std::int64_t node) const { return const_cast<std::uint32_t*>(record(node))[width - 1]; }
};

inline Range children_of(const Level& level, std::int64_t node) {
  return {level.record(node)[kChild], level.record(node + 1)[kChild]};
}

// The last passes: where tokens begin, what follows most often, and suffix links. Each works on records `start` to
// `stop - 1` of a level, so threads may divide it. All throw std::invalid_argument where the records name others that
// do not exist.

/// Set `index[token]` to the first record of level 1 with this token or a higher one.
void fill_unigram_index(std::span<const Record> unigrams, std::span<std::uint32_t> index);

/// Write the offset of the most frequent child, of equals the first, into the records; return how many have children.
std::int64_t mark_argmax(std::span<Record> level, const Level& next, std::int64_t start, std::int64_t stop);

/// Link the n-grams of two tokens whose first tokens are the records of level 1.
void link_pairs(std::span<const Record> unigrams, const MutableLevel& pairs, std::span<const std::uint32_t> index,
                std::int64_t start, std::int64_t stop);

/// Link the children of records of `parents`, which are linked themselves.
void link_children(std::span<const Record> grandparents, std::span<const Record> parents, const MutableLevel& level,
                   std::int64_t start, std::int64_t stop);

/// What no build would have written, or nothing; in time linear in the graph's size.
std::optional<std::string> find_damage(const Trie& trie, std::span<const std::uint32_t> unigram_index);

}  // namespace speculant
