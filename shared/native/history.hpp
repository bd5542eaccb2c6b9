// What sequences have seen: their tokens, and what the target held likely after them.
//
// SessionHistory: a sequence of tokens that finds its own past: where did the last few tokens stand before?
//
// A ring of tokens in which every position links to the previous one that ended in the same tokens, as dictionary
// compressors do (hash chains), one chain per length: a long one finds old positions of a rare phrase, a short one the
// newest positions of a frequent token. Adding a token takes a few writes, forgetting takes none: positions that the
// ring has overwritten are recognised by their number. Collisions put foreign positions into a chain; every match is
// compared token by token, so they cost time and nothing else.
//
// TargetRows: the target's own top tokens, by the last token and by the last two that they follow.
//
// After Token Recycling (Luo et al. 2024), which keeps the latest row of every token. Every verified position tells
// what the target held likely there, accepted or not; when the same token, or the same two, come up again, these are
// candidates. What helps on text that no corpus resembles.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trie.hpp"

namespace speculant {

/// Longest match that is measured, in tokens; longer ones count as this long.
inline constexpr int kMaxMatch = 32;
/// Stands between texts of one history; no context contains it.
inline constexpr Token kSeparator = -1;
/// Longest path of a draft.
inline constexpr int kMaxDepth = 255;

/// The last tokens of a sequence, and capacity for a path that is drafted after them.
using Window = std::array<Token, kMaxMatch + kMaxDepth + 1>;

inline constexpr std::size_t kNumChains = 2;

class SessionHistory {
 public:
  /// `chain_lengths`: tokens that the positions of a chain have in common, the longest first. Memory grows with what is
  /// added, up to `max_tokens`.
  SessionHistory(std::int64_t max_tokens, const std::array<int, kNumChains>& chain_lengths);

  /// Tokens added so far, forgotten ones included.
  std::int64_t size() const { return size_; }
  /// The oldest position that may be looked at.
  std::int64_t oldest() const { return size_ - std::min(size_, lookback_); }
  Token at(std::int64_t position) const { return slot(position).token; }
  int chain_length(std::size_t chain) const { return chains_[chain].length; }
  /// The newest position in the bucket of the tokens before `end`; -1 if there is none.
  std::int64_t newest_in_chain(std::size_t chain, const Token* end) const;
  /// How far the position before in the chain is away; 0 if there is none.
  std::int64_t distance(std::size_t chain, std::int64_t position) const { return slot(position).distances[chain]; }

  /// The newest tokens that are kept, oldest first, at most so many.
  std::vector<Token> latest(std::int64_t num_tokens) const;
  /// Write the last tokens to the beginning of a window.
  void fill(Window& window) const;
  /// Allocate for so many tokens more.
  void reserve(std::int64_t num_tokens);
  /// Add a token that was reserved, here and to the last tokens in `window`.
  void push(Token token, Window& window);
  /// Add tokens; what is no token matches nothing.
  void append(std::span<const Token> tokens);

  std::int64_t num_bytes() const;

 private:
  struct Slot {
    Token token;
    std::array<std::int32_t, kNumChains> distances;  // to the position before in a chain; 0: none
  };
  struct Chain {
    int length;
    std::vector<std::uint32_t> heads;  // per bucket, its newest position plus 1; 0: none
  };
  const Slot& slot(std::int64_t position) const { return ring_[static_cast<std::size_t>(position) & mask()]; }
  std::size_t mask() const { return ring_.size() - 1; }
  void allocate(std::int64_t capacity);
  std::int64_t position_of(std::uint32_t head) const;

  std::int64_t max_tokens_;
  std::int64_t size_ = 0;
  std::int64_t lookback_ = 0;  // most tokens that may be looked back on
  std::vector<Slot> ring_;
  std::array<Chain, kNumChains> chains_;
};

/// Tokens kept of a row, and rows kept of a context.
inline constexpr int kRowWidth = 4, kRowDepth = 4;

class TargetRows {
 public:
  /// The newest row first; in a row the most probable next token first, -1 for none.
  using Rows = std::array<std::array<Token, kRowWidth>, kRowDepth>;
  struct Slot {
    std::int64_t key = -1;
    Rows rows;
  };
  static constexpr std::size_t kNumSlots = 32'768;  // 2.4 MB; of two contexts that share one the later one stays

  /// Take the latest row after two tokens: best first, negative for none, as is `before` where there is none.
  void put(Token before, Token last, std::span<const Token> row);
  /// The rows after the last `length` tokens, 1 or 2, before `end`; null if there are none.
  const Rows* find(const Token* end, int length) const;

  /// All slots; none before the first row comes.
  const std::vector<Slot>& slots() const { return slots_; }
  /// Fill a slot, of a table that was saved.
  void restore(std::size_t index, const Slot& slot);

  bool is_changed = false;  // since it was last saved

 private:
  friend class TargetRowsOverlay;

  std::vector<Slot> slots_;
};

/// Rows of one sequence over a table that it must not change: the slots that it filled are its own, for the others the
/// table counts. The same as a copy of the table, at the size of what was filled.
class TargetRowsOverlay {
 public:
  explicit TargetRowsOverlay(const TargetRows& table) : table_(table) {}

  void put(Token before, Token last, std::span<const Token> row);
  const TargetRows::Rows* find(const Token* end, int length) const;

  /// Memory of the slots that were filled.
  std::int64_t num_bytes() const;

 private:
  struct Own {
    std::uint32_t index;  // in the table
    TargetRows::Slot slot;
  };
  /// Where a slot of the table is, or would be, in `places_`.
  std::size_t place_of(std::size_t index) const;
  TargetRows::Slot& own(std::size_t index);

  const TargetRows& table_;
  std::vector<Own> own_;
  std::vector<std::uint32_t> places_;  // hash table from slots to those in `own_`, plus 1; 0: none
};

}  // namespace speculant
