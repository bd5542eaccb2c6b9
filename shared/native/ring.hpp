// Memory layout of the tokens of one history. Only this file and ring.cpp know the layout. Other files identify a token
// by its position, counted from the first token ever added.
//
// The number of places in a table is a power of two. The token at a position is in place position & (places - 1), so
// the newest token overwrites the token `places` positions before it. Next to the token are its links: per chain, the
// distance to the previous position whose last tokens fell into the same bucket (hash chains, as in dictionary
// compressors). Every bucket stores its newest position plus 1; 0 means none.
//
// Adding a token takes a few writes, and forgetting takes none: an overwritten position is below oldest(). Collisions
// put unrelated positions into a chain, so a reader of a chain compares the tokens.
//
// A nearly full table gets a successor of twice its size. Every added token then copies a few old tokens to it. So
// growth never takes long at a time, and look-ups return the same as with one large table.
//
// Memory per token: 12 bytes in its place, and 8 in the buckets.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "trie.hpp"
#include "zeros.hpp"

namespace speculant {

/// Separates the texts of one history; no context contains it.
inline constexpr Token kSeparator = -1;

// A history stores an invalid token as one number and looks it up as another, so that it never matches itself.
inline Token as_kept(Token token) { return token >= 0 ? token : kSeparator; }
inline Token as_sought(Token token) { return token >= 0 ? token : kNoToken; }

/// Chains of a history: one for long contexts, which finds old positions of a rare phrase, and one for short contexts,
/// which finds the newest positions of a frequent token.
inline constexpr std::size_t kNumChains = 2;

/// Tokens by position; for the last few tokens of a context, the positions after earlier occurrences, newest first.
class TokenRing {
 public:
  /// `chain_lengths`: number of tokens that the positions of a chain share, the longest first. Memory grows with added
  /// tokens, up to `max_tokens`.
  TokenRing(std::int64_t max_tokens, const std::array<int, kNumChains>& chain_lengths);

  /// Number of tokens added so far, including forgotten ones; it is the position of the next token.
  std::int64_t size() const { return size_; }
  /// The oldest kept position.
  std::int64_t oldest() const { return size_ - std::min({size_, table_.num_places(), max_tokens_}); }
  /// The token at a position from oldest() on.
  Token at(std::int64_t position) const { return table_.place(position).token; }

  int chain_length(std::size_t chain) const { return chain_lengths_[chain]; }
  /// The newest position in the bucket of the tokens before `end`; -1 if there is none. It may be forgotten already.
  std::int64_t newest(std::size_t chain, const Token* end) const;
  /// The previous position in a chain; -1 if there is none. It may be forgotten already.
  std::int64_t before(std::size_t chain, std::int64_t position) const {
    const std::int32_t distance = table_.place(position).distances[chain];
    return distance == 0 ? -1 : position - distance;
  }

  /// Allocate space for more tokens. Takes long if there are many already and their number more than doubles.
  void reserve(std::int64_t num_tokens);
  /// Whether reserve() takes negligible time, for any number of tokens.
  bool is_small() const { return size_ <= kGrownAtOnce; }
  /// Add a reserved token. The last tokens, including this one, precede `end` in look-up form.
  void push(Token token, const Token* end);

  std::int64_t num_bytes() const;

 private:
  struct Place {
    Token token;
    std::array<std::int32_t, kNumChains> distances;  // to the previous position in a chain; 0: none
  };
  /// A table of fixed size.
  class Table {
   public:
    explicit Table(std::int64_t num_places);
    std::int64_t num_places() const { return static_cast<std::int64_t>(mask_) + 1; }
    Place& place(std::int64_t position) const { return places_[static_cast<std::size_t>(position) & mask_]; }
    /// The newest position in a bucket, if `size` is the next position; -1 if there is none.
    std::int64_t newest(std::size_t chain, int length, const Token* end, std::int64_t size) const;
    /// Put a token at a position, after all smaller ones.
    void put(std::int64_t position, Token token, const Token* end, const std::array<int, kNumChains>& lengths);
    /// Free a part of the memory; returns whether any is left.
    bool shrink();
    /// Allocate the memory of the next buckets.
    void touch_next();
    /// Whether the memory of all buckets is allocated.
    bool is_touched() const { return num_touched_ > mask_; }
    std::size_t num_bytes() const;

   private:
    std::uint32_t& head(std::size_t chain, int length, const Token* end) const;

    std::size_t mask_;  // number of places minus 1, and of buckets of a chain minus 1
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

  /// Copy the oldest token that is not yet in the next table.
  void copy_next();

  std::int64_t max_tokens_;
  std::array<int, kNumChains> chain_lengths_;
  std::int64_t size_ = 0;
  Table table_;
  std::unique_ptr<Growth> growth_;
  std::unique_ptr<Table> outgrown_;  // the previous table, while its memory is freed
};

}  // namespace speculant
