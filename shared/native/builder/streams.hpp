// Sorted keys with weights: a graph taken apart, and streams of them put together.
#pragma once

#include <vector>

#include "builder/keys.hpp"
#include "trie.hpp"

namespace speculant {

/// Walks through a trie, depth first, and writes the key of every n-gram that has counts of its own.
class KeyReader {
 public:
  /// N-grams with counts below `min_count` are left out; their counts stay with the n-gram they continue.
  ///
  /// Throws std::invalid_argument if `bits` is not the size of a token, or the trie is of no layout.
  KeyReader(const Trie& trie, int bits, std::int64_t min_count);

  const KeyLayout& layout() const { return layout_; }

  /// Write the next keys, at most one for each weight, and return their number: 0 when the walk is over.
  std::size_t read(std::span<std::uint64_t> keys, std::span<std::int64_t> weights);

 private:
  std::int64_t own_count(std::int64_t count, std::int64_t length, Range children) const;
  void set_token(std::int64_t depth, Token token);

  const Trie& trie_;
  KeyLayout layout_;
  std::int64_t min_count_;
  std::vector<Range> rest_;         // of the children at each depth, the ones that are still to be visited
  std::vector<std::uint64_t> key_;  // of the n-gram that is visited
};

/// Ascending distinct keys, and how often each occurs.
struct WeightedKeys {
  std::span<const std::uint64_t> keys;
  Weights weights;
  std::size_t next = 0;  // the first that was not taken yet

  bool empty() const { return next >= weights.size(); }
};

/// Merge two lists until one is exhausted and return how many keys were written; equal keys add their weights.
///
/// `keys` and `weights` have space for both lists.
std::size_t merge_keys(WeightedKeys& first, WeightedKeys& second, std::size_t num_words, std::span<std::uint64_t> keys,
                       std::span<std::int64_t> weights);

}  // namespace speculant
