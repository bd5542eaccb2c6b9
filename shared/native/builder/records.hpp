// The columns of records, as graph/layout.py draws them.
#pragma once

#include "trie.hpp"

namespace speculant {

inline constexpr int kTokenBits = 21;
inline constexpr std::uint32_t kTokenMask = (1 << kTokenBits) - 1;
/// The most frequent child's offset if it does not fit: look for it.
inline constexpr std::int64_t kArgmaxOverflow = (1 << (32 - kTokenBits)) - 1;

/// A suffix link is the last column of every record; those of the last level have no child.
enum Column { kToken, kCumulative, kChild, kLink };

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

}  // namespace speculant
