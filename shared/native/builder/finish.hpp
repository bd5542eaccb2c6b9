// The last passes over a trie: where tokens begin, what follows most often, and suffix links.
//
// Each works on records `start` to `stop - 1` of a level, so threads may divide it. All throw std::invalid_argument
// where the records name others that do not exist.
#pragma once

#include <span>

#include "builder/records.hpp"

namespace speculant {

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

}  // namespace speculant
