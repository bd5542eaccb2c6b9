// Keys: n-grams of N+1 tokens packed into words, gathered from a token stream and sorted; keys.py says what they are.
#pragma once

#include <cstdint>
#include <span>

namespace speculant {

using Weights = std::span<const std::int64_t>;

/// How n-grams are packed.
struct KeyLayout {
  /// Throws std::invalid_argument for what no graph has.
  KeyLayout(std::int64_t length, int bits);

  std::int64_t word_of(std::int64_t depth) const { return depth / per_word; }
  /// How far a word's token is from its lowest bit.
  int shift_of(std::int64_t depth) const { return bits * (per_word - 1 - static_cast<int>(depth % per_word)); }
  /// The value of one token: its id plus 1, or 0 behind the end.
  std::uint64_t value(const std::uint64_t* key, std::int64_t depth) const {
    return key[word_of(depth)] >> shift_of(depth) & mask();
  }
  std::uint64_t mask() const { return (std::uint64_t{1} << bits) - 1; }

  std::int64_t length;  // tokens of a key, N+1
  int bits;             // of a token
  int per_word;         // tokens in a word, the first one in the highest bits
  std::int64_t num_words;
};

/// Add up which values follow a prefix: `++counts[value]`.
///
/// Throws std::invalid_argument where a value is not an index of `counts`.
void count_values(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> prefix,
                  std::span<std::int64_t> counts);

/// Pack the n-grams of all positions whose next values are `prefix` and then one of `low` to `high - 1`.
///
/// Return their number; `keys` holds them in the order of positions. Throws std::invalid_argument if they don't fit.
std::int64_t gather_keys(std::span<const std::uint32_t> tokens, std::span<const std::uint64_t> prefix,
                         std::uint64_t low, std::uint64_t high, const KeyLayout& layout, std::span<std::uint64_t> keys);

/// Sort keys in place; `spare` is of their size and overwritten.
///
/// All share their first `depth` tokens; the values of the next are `low` to `high - 1`, or std::invalid_argument is
/// thrown.
void sort_keys(std::span<std::uint64_t> keys, std::span<std::uint64_t> spare, std::int64_t depth, std::uint64_t low,
               std::uint64_t high, const KeyLayout& layout);

}  // namespace speculant
