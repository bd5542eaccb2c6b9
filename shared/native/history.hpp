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
// A ring that is nearly full has a successor of twice its size, to which every token that is added brings a few old
// ones with it. So growing never takes long at a time, and what is found is what one large ring would find.
//
// Memory: a token takes 12 bytes in the ring and 8 in its buckets. A ring has a power of two of places, so a sequence
// takes 20 to 40 bytes a token, and up to 60 while it grows; a tenant's million learned tokens take 21 MB, 42 while
// they grow, and its target rows 2.4 MB. A sequence that does not learn adds the rows that it fills, 72 bytes each.
//
// TargetRows: the target's own top tokens, by the last token and by the last two that they follow.
//
// After Token Recycling (Luo et al. 2024), which keeps the latest row of every token. Every verified position tells
// what the target held likely there, accepted or not; when the same token, or the same two, come up again, these are
// candidates. What helps on text that no corpus resembles.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
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
  std::int64_t oldest() const { return size_ - std::min({size_, capacity(), max_tokens_}); }
  Token at(std::int64_t position) const { return slot(position).token; }
  int chain_length(std::size_t chain) const { return chain_lengths_[chain]; }
  /// The newest position in the bucket of the tokens before `end`; -1 if there is none.
  std::int64_t newest_in_chain(std::size_t chain, const Token* end) const;
  /// How far the position before in the chain is away; 0 if there is none.
  std::int64_t distance(std::size_t chain, std::int64_t position) const { return slot(position).distances[chain]; }

  /// The newest tokens that are kept, oldest first, at most so many.
  std::vector<Token> latest(std::int64_t num_tokens) const;
  /// Write the last tokens to the beginning of a window.
  void fill(Window& window) const { fill(window, size_); }
  /// The same, of the tokens before a position.
  void fill(Window& window, std::int64_t end) const;
  /// Allocate for so many tokens more. Takes long if there are many already and they are more than double by this.
  void reserve(std::int64_t num_tokens);
  /// Whether that takes no time worth mention, however many tokens more there are to be.
  bool is_small() const { return size_ <= kGrownAtOnce; }
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
  /// Zeros. Of many, the system gives the memory page by page, when it is written to, and takes it back in parts.
  template <class Number>
  class Zeros {
   public:
    explicit Zeros(std::size_t size) : memory_(take_zeros(size * sizeof(Number))), num_bytes_(size * sizeof(Number)) {}
    Zeros(Zeros&& other) noexcept { *this = std::move(other); }
    Zeros& operator=(Zeros&& other) noexcept {
      std::swap(memory_, other.memory_), std::swap(num_bytes_, other.num_bytes_);
      return *this;
    }
    ~Zeros() { num_bytes_ = give_back(memory_, num_bytes_, num_bytes_); }
    Number& operator[](std::size_t index) const { return static_cast<Number*>(memory_)[index]; }
    std::size_t num_bytes() const { return num_bytes_; }
    /// Give a part of the memory back, from its end; what it held is lost. Returns whether any is left.
    bool shrink() { return (num_bytes_ = give_back(memory_, num_bytes_, kGivenBack)) > 0; }

   private:
    void* memory_ = nullptr;
    std::size_t num_bytes_ = 0;
  };
  static constexpr std::size_t kGivenBack = 1 << 18;  // at a time: a system takes a few tenths of a millisecond for it
  static void* take_zeros(std::size_t num_bytes);
  /// Returns how many bytes are left.
  static std::size_t give_back(void* memory, std::size_t num_bytes, std::size_t most);
  struct Ring {
    explicit Ring(std::int64_t capacity)
        : size(static_cast<std::size_t>(capacity)),
          slots(size),
          heads{Zeros<std::uint32_t>(size), Zeros<std::uint32_t>(size)} {}
    std::size_t size;  // a power of two
    Zeros<Slot> slots;
    std::array<Zeros<std::uint32_t>, kNumChains> heads;  // per chain and bucket, its newest position plus 1; 0: none
    bool shrink();
    /// Have the system give the memory of some buckets.
    void touch(std::size_t first, std::size_t last);
    std::size_t num_bytes() const { return slots.num_bytes() + heads[0].num_bytes() + heads[1].num_bytes(); }
  };
  /// The next ring, while it is being filled.
  struct Growth {
    Ring ring;
    std::size_t num_touched = 0;  // buckets whose memory is there; nothing is copied before all of it is
    std::int64_t num_copied = 0;
  };
  static constexpr std::int64_t kGrownAtOnce = 8'192;  // most tokens that are copied at a time

  const Slot& slot(std::int64_t position) const {
    return ring_.slots[static_cast<std::size_t>(position) & (ring_.size - 1)];
  }
  std::int64_t capacity() const { return static_cast<std::int64_t>(ring_.size); }
  /// Add a token at a position; `end` is behind it, in a window.
  void link(Ring& ring, std::int64_t position, Token token, const Token* end) const;
  void copy_next();

  std::int64_t max_tokens_;
  std::array<int, kNumChains> chain_lengths_;
  std::int64_t size_ = 0;
  Ring ring_;
  std::unique_ptr<Growth> growth_;
  std::unique_ptr<Ring> outgrown_;  // the one before, while its memory is given back
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
