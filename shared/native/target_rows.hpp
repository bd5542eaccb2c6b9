// The target's own top tokens, by the last token and by the last two that they follow.
//
// After Token Recycling (Luo et al. 2024), which keeps the latest row of every token. Every verified position tells
// what the target held likely there, accepted or not; when the same token, or the same two, come up again, these are
// candidates. What helps on text that no corpus resembles.
//
// Memory: a tenant's rows take 2.4 MB from the first one on. A sequence that nobody learns from adds 90 to 180 bytes
// for each slot that it fills.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trie.hpp"

namespace speculant {

/// Tokens kept of a row, and rows kept of a context. Eight rows bring 0.5 % more and take twice the memory; eight
/// tokens bring 0.1 % (docs/experiments.md, "rows of the target").
inline constexpr int kRowWidth = 4, kRowDepth = 4;

class TargetRows {
 public:
  /// The newest row first; in a row the most probable next token first, -1 for none.
  using Rows = std::array<std::array<Token, kRowWidth>, kRowDepth>;
  struct Slot {
    std::int64_t key = -1;
    Rows rows;
  };
  // Contexts kept, 72 bytes each: 2.4 MB for a tenant. Of two that share a slot the later one stays. With 4,096
  // contracts lose 1.1 %, with 131,072 they gain 0.1 (docs/experiments.md, "constants of the mixture").
  static constexpr std::size_t kNumSlots = 32'768;

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
