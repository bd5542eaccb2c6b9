// Where the tokens of one history lie in memory. Nothing outside of this file and ring.cpp knows the layout: others
// name a token by its position, counted from the first one that was ever added.
//
// A table has a power of two of places. The token at a position lies in the place position & (places - 1), so the
// newest token overwrites the one that is `places` older. With it lie its links: per chain, how far back the previous
// position is whose last tokens fell into the same bucket (hash chains, as dictionary compressors have them). Every
// bucket holds the newest of its positions, plus 1; 0 means none.
//
// Adding a token takes a few writes, forgetting takes none: an overwritten position is told by its number, which is
// below oldest(). Collisions put foreign positions into a chain, so whoever follows one compares the tokens.
//
// A table that is nearly full gets a successor of twice its size. Every token that is added then brings a few old ones
// to it. So growing never takes long at a time, and what is found is what one large table would find.
//
// Memory: a token takes 12 bytes in its place and 8 in the buckets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "trie.hpp"
#include "zeros.hpp"

namespace speculant {

/// Stands between texts of one history; no context contains it.
inline constexpr Token kSeparator = -1;

// A history keeps what is no token as one number and looks for it as another, so that it never matches itself.
inline Token as_kept(Token token) { return token >= 0 ? token : kSeparator; }
inline Token as_sought(Token token) { return token >= 0 ? token : kNoToken; }

/// Chains of a history: one of long contexts, which finds old positions of a rare phrase, and one of short ones, which
/// finds the newest positions of a frequent token.
inline constexpr std::size_t kNumChains = 2;

/// Tokens by position, and for the last few tokens of a context the positions that end in them, newest first.
class TokenRing {
 public:
  /// `chain_lengths`: tokens that the positions of a chain have in common, the longest first. Memory grows with what is
  /// added, up to `max_tokens`.
  TokenRing(std::int64_t max_tokens, const std::array<int, kNumChains>& chain_lengths);

  /// Tokens added so far, forgotten ones included: the position of the next one.
  std::int64_t size() const { return size_; }
  /// The oldest position that is kept.
  std::int64_t oldest() const { return size_ - std::min({size_, table_.num_places(), max_tokens_}); }
  /// The token at a position from oldest() on.
  Token at(std::int64_t position) const { return table_.place(position).token; }

  int chain_length(std::size_t chain) const { return chain_lengths_[chain]; }
  /// The newest position in the bucket of the tokens before `end`; -1 if there is none. It may be forgotten.
  std::int64_t newest(std::size_t chain, const Token* end) const;
  /// The position before one in its chain; -1 if there is none. It may be forgotten.
  std::int64_t before(std::size_t chain, std::int64_t position) const {
    const std::int32_t distance = table_.place(position).distances[chain];
    return distance == 0 ? -1 : position - distance;
  }

  /// Allocate for so many tokens more. Takes long if there are many already and they are more than double by this.
  void reserve(std::int64_t num_tokens);
  /// Whether that takes no time worth mention, however many tokens more there are to be.
  bool is_small() const { return size_ <= kGrownAtOnce; }
  /// Add a token that was reserved. The last tokens, this one included, lie before `end` as they are sought.
  void push(Token token, const Token* end);

  std::int64_t num_bytes() const;

 private:
  struct Place {
    Token token;
    std::array<std::int32_t, kNumChains> distances;  // to the position before in a chain; 0: none
  };
  /// Places of one number, which does not change.
  class Table {
   public:
    explicit Table(std::int64_t num_places);
    std::int64_t num_places() const { return static_cast<std::int64_t>(mask_) + 1; }
    Place& place(std::int64_t position) const { return places_[static_cast<std::size_t>(position) & mask_]; }
    /// The newest position in a bucket, where `size` is the next one; -1 if there is none.
    std::int64_t newest(std::size_t chain, int length, const Token* end, std::int64_t size) const;
    /// Put a token at a position, after all smaller ones.
    void put(std::int64_t position, Token token, const Token* end, const std::array<int, kNumChains>& lengths);
    /// Give a part of the memory back; returns whether any is left.
    bool shrink();
    /// Have the system give the memory of the next buckets.
    void touch_next();
    /// Whether the memory of all buckets is there.
    bool is_touched() const { return num_touched_ > mask_; }
    std::size_t num_bytes() const;

   private:
    std::uint32_t& head(std::size_t chain, int length, const Token* end) const;

    std::size_t mask_;  // places less 1, and buckets of a chain less 1
    std::size_t num_touched_ = 0;
    Zeros<Place> places_;
    std::array<Zeros<std::uint32_t>, kNumChains> heads_;  // per chain and bucket, its newest position plus 1; 0: none
  };
  /// The next table, while it is being filled.
  struct Growth {
    Table table;
    std::int64_t num_copied = 0;
  };
  // The largest table, in places, that is copied as a whole when it is full: 0.13 ms on an Intel Xeon. Larger ones grow
  // token by token.
  static constexpr std::int64_t kGrownAtOnce = 8'192;

  /// Copy the oldest token that the next table does not have.
  void copy_next();

  std::int64_t max_tokens_;
  std::array<int, kNumChains> chain_lengths_;
  std::int64_t size_ = 0;
  Table table_;
  std::unique_ptr<Growth> growth_;
  std::unique_ptr<Table> outgrown_;  // the one before, while its memory is given back
};

}  // namespace speculant
