// Keys: n-grams of N+1 tokens packed into words. They are collected from a token stream and sorted, or read from a
// graph and merged; keys.py defines them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trie.hpp"

namespace speculant {

using Weights = std::span<const std::int64_t>;

/// Packing of n-grams.
struct KeyLayout {
  /// Throws std::invalid_argument for sizes that no graph has.
  KeyLayout(std::int64_t length, int bits);

  std::int64_t word_of(std::int64_t depth) const { return depth / per_word; }
  /// The shift of a token in its word, in bits.
  int shift_of(std::int64_t depth) const { return bits * (per_word - 1 - static_cast<int>(depth % per_word)); }
  /// The value of one token: its id plus 1, or 0 after the end.
  std::uint64_t value(const std::uint64_t* key, std::int64_t depth) const {
    return key[word_of(depth)] >> shift_of(depth) & mask();
  }
  std::uint64_t mask() const { return (std::uint64_t{1} << bits) - 1; }

  std::int64_t length;  // tokens of a key, N+1
  int bits;             // of a token
  int per_word;         // tokens in a word, the first one in the highest bits
  std::int64_t num_words;
};

/// Count the values that follow a prefix: `++counts[value]`.
///
/// Throws std::invalid_argument if a value is not an index of `counts`.
void count_values(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> prefix,
                  std::span<std::int64_t> counts);

/// Pack the n-grams of all positions whose next values are `prefix` and then one of `low` to `high - 1`.
///
/// Return their number; `keys` holds them in the order of positions. Throws std::invalid_argument if they don't fit.
std::int64_t gather_keys(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> prefix,
                         std::uint64_t low, std::uint64_t high, const KeyLayout& layout, std::span<std::uint64_t> keys);

/// Sort keys in place; `spare` has the same size and is overwritten.
///
/// All keys share their first `depth` tokens. Throws std::invalid_argument if the values of the next token are not all
/// from `low` to `high - 1`.
void sort_keys(std::span<std::uint64_t> keys, std::span<std::uint64_t> spare, std::int64_t depth, std::uint64_t low,
               std::uint64_t high, const KeyLayout& layout);

/// Walks through a trie depth first, and writes the key of every n-gram whose count exceeds its kept children's counts.
class KeyReader {
 public:
  /// N-grams with counts below `min_count` are omitted; their counts stay with the n-gram they continue.
  ///
  /// Throws std::invalid_argument if `bits` is not the size of a token, or the trie has no valid layout.
  KeyReader(const Trie& trie, int bits, std::int64_t min_count);

  const KeyLayout& layout() const { return layout_; }

  /// Write the next keys, at most one for each weight, and return their number: 0 at the end of the walk.
  std::size_t read(std::span<std::uint64_t> keys, std::span<std::int64_t> weights);

 private:
  std::int64_t own_count(std::int64_t count, std::int64_t length, Range children) const;
  void set_token(std::int64_t depth, Token token);

  const Trie& trie_;
  KeyLayout layout_;
  std::int64_t min_count_;
  std::vector<Range> rest_;         // unvisited children at each depth
  std::vector<std::uint64_t> key_;  // of the visited n-gram
};

/// Ascending distinct keys, and the number of occurrences of each.
struct WeightedKeys {
  std::span<const std::uint64_t> keys;
  Weights weights;
  std::size_t next = 0;  // the first key not merged yet

  bool empty() const { return next >= weights.size(); }
};

/// Merge two lists until one is exhausted, and return the number of keys written; equal keys add their weights.
///
/// `keys` and `weights` have space for both lists.
std::size_t merge_keys(WeightedKeys& first, WeightedKeys& second, std::size_t num_words, std::span<std::uint64_t> keys,
                       std::span<std::int64_t> weights);

}  // namespace speculant
