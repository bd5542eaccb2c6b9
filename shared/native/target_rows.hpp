// The target's own top tokens, stored by the last token and by the last two tokens before them.
//
// After Token Recycling (Luo et al. 2024), which keeps the latest row of every token. Every verified position provides
// the target's top tokens, whether the drafted token was accepted or not. When the same token, or the same two tokens,
// occur again, these top tokens are candidates. They help on text unlike any corpus.
//
// Memory: a tenant's rows take 2.4 MB after the first one. A sequence that is not learned adds 90 to 180 bytes for each
// slot that it fills.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trie.hpp"

namespace speculant {

/// Tokens kept per row, and rows kept per context. Eight rows gain 0.5 % and take twice the memory; eight tokens gain
/// 0.1 % (docs/experiments.md, "rows of the target").
inline constexpr int kRowWidth = 4, kRowDepth = 4;

class TargetTopK {
 public:
  /// The newest row first; in a row the most probable next token first, -1 for none.
  using Rows = std::array<std::array<Token, kRowWidth>, kRowDepth>;
  struct Slot {
    std::int64_t key = -1;
    Rows rows;
  };
  // Contexts kept, 72 bytes each: 2.4 MB for a tenant. If two share a slot, the later one stays. With 4,096, contracts
  // lose 1.1 %; with 131,072, they gain 0.1 % (docs/experiments.md, "constants of the mixture").
  static constexpr std::size_t kNumSlots = 32'768;

  /// Store the latest row after two tokens: best first, negative for none. `before` is negative if there is no such
  /// token.
  void put(Token before, Token last, std::span<const Token> row);
  /// The rows after the last `length` tokens, 1 or 2, before `end`; null if there are none.
  const Rows* find(const Token* end, int length) const;

  /// All slots; empty before the first row.
  const std::vector<Slot>& slots() const { return slots_; }
  /// Fill a slot from a saved table.
  void restore(std::size_t index, const Slot& slot);

  bool is_changed = false;  // since it was last saved

 private:
  friend class TargetTopKOverlay;

  std::vector<Slot> slots_;
};

/// Rows of one sequence, over a table that it must not change. The slots that it filled belong to it; other slots are
/// read from the table. Equivalent to a copy of the table, but only filled slots take memory.
class TargetTopKOverlay {
 public:
  explicit TargetTopKOverlay(const TargetTopK& table) : table_(table) {}

  void put(Token before, Token last, std::span<const Token> row);
  const TargetTopK::Rows* find(const Token* end, int length) const;

  /// Memory of the filled slots.
  std::int64_t num_bytes() const;

 private:
  struct Own {
    std::uint32_t index;  // in the table
    TargetTopK::Slot slot;
  };
  /// The index in `places_` of a slot of the table, present or not.
  std::size_t place_of(std::size_t index) const;
  TargetTopK::Slot& own(std::size_t index);

  const TargetTopK& table_;
  std::vector<Own> own_;
  std::vector<std::uint32_t> places_;  // hash table from slots to those in `own_`, plus 1; 0: none
};

}  // namespace speculant
