// A sequence of tokens, with look-ups of earlier occurrences of its last few tokens.
//
// ring.hpp stores the tokens and their chains; this class compares them with a context, and reads them.
//
// Memory: 20 to 40 bytes per token, because the size of a table is a power of two, and up to 80 while it grows. A
// tenant's million learned tokens take 21 MB, 32 MB while they grow.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "ring.hpp"

namespace speculant {

/// Longest measured match, in tokens; longer ones count as this long. 16 and 64 are within 0.2 % (docs/experiments.md,
/// "constants of the mixture").
inline constexpr int kMaxMatch = 32;
/// Longest path of a draft, in tokens: the upper bound of `draft.max_depth`.
inline constexpr int kMaxDepth = 255;

/// Tokens before the end of a sequence that sources may read.
inline constexpr int kLookBack = 80;
/// The last tokens of a sequence in look-up form, with capacity for a drafted path after them.
using Window = std::array<Token, kLookBack + kMaxDepth + 1>;

class SessionHistory {
 public:
  /// Arguments as in TokenRing.
  SessionHistory(std::int64_t max_tokens, const std::array<int, kNumChains>& chain_lengths)
      : ring_(max_tokens, chain_lengths) {}

  std::int64_t size() const { return ring_.size(); }
  Token at(std::int64_t position) const { return ring_.at(position); }
  int chain_length(std::size_t chain) const { return ring_.chain_length(chain); }
  std::int64_t num_bytes() const { return ring_.num_bytes(); }

  /// Call `visit` with the newest `max_matches` matches of a chain below `size`: positions that end in the tokens
  /// before `end`, and the length of each match, at most `longest`.
  template <class Visit>
  void for_each_match(std::size_t chain, const Token* end, std::int64_t size, int max_matches, std::int64_t longest,
                      Visit&& visit) const;

  /// The newest kept tokens, oldest first, at most `num_tokens`.
  std::vector<Token> latest(std::int64_t num_tokens) const;
  /// Write the last tokens to the beginning of a window.
  void fill(Window& window) const { fill(window, size()); }
  /// The same for the tokens before a position.
  void fill(Window& window, std::int64_t end) const;

  /// As in TokenRing.
  void reserve(std::int64_t num_tokens) { ring_.reserve(num_tokens); }
  bool is_small() const { return ring_.is_small(); }
  /// Add a reserved token, here and to the last tokens in `window`.
  void push(Token token, Window& window);
  /// Add tokens; kNoToken matches nothing.
  void append(std::span<const Token> tokens);

 private:
  // Maximum number of positions of a chain that are visited, matching or not: a time limit if many contexts share a
  // bucket. With 32 one text loses 0.1 %, with 256 no figure changes (same section).
  static constexpr int kMaxWalk = 64;

  /// Number of tokens up to a position that equal the tokens before `end`, at most `most`; these tokens are kept.
  std::int64_t match_length(std::int64_t position, const Token* end, std::int64_t most) const {
    std::int64_t length = 0;
    while (length < most && ring_.at(position - length) == end[-1 - length]) ++length;
    return length;
  }

  TokenRing ring_;
};

template <class Visit>
void SessionHistory::for_each_match(std::size_t chain, const Token* end, std::int64_t size, int max_matches,
                                    std::int64_t longest, Visit&& visit) const {
  const std::int64_t oldest = ring_.oldest();
  std::int64_t position = ring_.newest(chain, end);
  for (int walked = 0, matches = 0; walked < kMaxWalk && matches < max_matches && position >= oldest;) {
    if (position < size) {
      ++walked;
      const std::int64_t length = match_length(position, end, std::min(longest, position - oldest + 1));
      if (length >= ring_.chain_length(chain)) visit(position, length), ++matches;
    }
    position = ring_.before(chain, position);
  }
}

}  // namespace speculant
