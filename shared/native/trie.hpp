// The graph for look-ups: a read-only view of the sorted forward trie of graph/layout.py.
//
// Guarantees for an unchecked file: its levels lie within it, and every index from it is compared with the size of its
// level before use. Counts may be negative or too large, children out of order, links wrong. Readers clamp them, so at
// worst drafts are wrong. The caller limits the work: a context may have as many children as the vocabulary has tokens,
// so a tree reads a limited number of them (kMostRead).
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

#include "errors.hpp"

namespace speculant {

using Token = std::int32_t;

/// Bits of a record for a token; ids are below the largest number of this many bits. 2 million ids are ten times the
/// vocabulary of gpt-oss, and three tokens fit into a word of the builder's keys. graph/layout.py has the same.
inline constexpr int kTokenBits = 21;
inline constexpr std::uint32_t kTokenMask = (1 << kTokenBits) - 1;
inline constexpr Token kMaxVocabulary = kTokenMask;
/// Multiplier of hashes: an odd number with random-looking bits, from the golden ratio without its first bit.
inline constexpr std::uint64_t kHashFactor = 0x1E3779B97F4A7C15;
/// Stands for an offset of the most frequent child that does not fit; then the child is searched for.
inline constexpr std::int64_t kArgmaxOverflow = (1 << (32 - kTokenBits)) - 1;

/// A suffix link is the last column of every record; records of the last level have no child.
enum Column { kToken, kCumulative, kChild, kLink };

/// Stands for an invalid token, and for positions before the start of a sequence; matches no token.
inline constexpr Token kNoToken = -2;

/// Converts ids to tokens; ids outside the vocabulary become kNoToken.
template <class Ids>
std::vector<Token> tokens_of(const Ids& ids, Token vocabulary_size) {
  std::vector<Token> tokens;
  tokens.reserve(ids.size());
  for (const std::int64_t id : ids)
    tokens.push_back(0 <= id && id < vocabulary_size ? static_cast<Token>(id) : kNoToken);
  return tokens;
}

/// The longest known suffix of a sequence: its length, and its record on that level. Order 0: none.
struct Context {
  std::int64_t order = 0;
  std::int64_t node = 0;
};

/// A range of records of one level.
struct Range {
  std::int64_t low = 0;
  std::int64_t high = 0;

  bool empty() const { return low >= high; }
  std::int64_t size() const { return high - low; }
};

/// All n-grams of one length, in lexicographic order, and one extra record that ends the last range.
struct Level {
  const std::uint32_t* words = nullptr;
  std::int64_t size = 0;
  std::int64_t width = 0;  // words of a record

  const std::uint32_t* record(std::int64_t node) const {
    assert(0 <= node && node <= size);
    return words + node * width;
  }
  Token token(std::int64_t node) const { return static_cast<Token>(record(node)[kToken] & kTokenMask); }
  std::int64_t cumulative(std::int64_t node) const { return record(node)[kCumulative]; }
  /// Number of occurrences of the n-gram; negative only in a damaged file.
  std::int64_t count(std::int64_t node) const { return cumulative(node + 1) - cumulative(node); }
  std::int64_t total(Range range) const { return cumulative(range.high) - cumulative(range.low); }
  /// The most frequent record of a range, the first among equals.
  std::int64_t argmax(Range range) const {
    std::int64_t best = range.low, most = 0;
    for (std::int64_t node = range.low; node < range.high; ++node) {
      if (count(node) > most) best = node, most = count(node);
    }
    return best;
  }
};

class Trie {
 public:
  /// An empty graph: every token is possible, and no context is known.
  Trie() = default;

  /// View `words`, which must outlive the trie.
  ///
  /// `table` is the table of graph/layout.py: (first word, n-grams) of levels 1 to N+1, then (first word, vocabulary
  /// size) of the unigram index, then (N, words). Throws std::invalid_argument if these are not inside `words`.
  Trie(std::span<const std::uint32_t> words, std::span<const std::int64_t> table);

  std::int64_t max_order() const { return max_order_; }
  Token vocabulary_size() const { return vocabulary_size_; }
  const Level& level(std::int64_t length) const { return levels_[static_cast<std::size_t>(length - 1)]; }
  bool has_context(Context context) const {
    return 1 <= context.order && context.order <= max_order_ && 0 <= context.node &&
           context.node < level(context.order).size;
  }

  /// The successors of a context of order 1 to N; empty if its record is invalid.
  Range children(Context context) const {
    const std::uint32_t* record = level(context.order).record(context.node);
    const Range range{record[kChild], record[kInnerWords + kChild]};
    if (range.low > range.high || range.high > level(context.order + 1).size) return {};
    return range;
  }

  /// The record with this token in a range of `level`, or -1.
  std::int64_t find_child(const Level& level, Range range, Token token) const;

  /// The record of an n-gram of 1 to N+1 tokens on its level, or -1.
  std::int64_t find_ngram(std::span<const Token> ngram) const;

  /// The record of `length` >= 2 tokens without the first of them, one level up.
  std::int64_t suffix_link(std::int64_t length, std::int64_t node) const {
    const std::int64_t link = level(length).record(node)[level(length).width - 1];
    return link < level(length - 1).size ? link : 0;
  }

  /// The context without its first token.
  Context shorter(Context context) const {
    return {context.order - 1, context.order > 1 ? suffix_link(context.order, context.node) : 0};
  }

  /// The context itself, or the longest shorter one that has children.
  Context back_off(Context context) const {
    while (context.order > 0 && children(context).empty()) context = shorter(context);
    return context;
  }

  /// The longest context with children after one more token.
  Context extend(Context context, Token token) const;

  /// The same if the record of the context followed by that token is known.
  Context extend_to(Context context, std::int64_t child) const {
    if (context.order < max_order_) return back_off({context.order + 1, child});
    return shift(context, child);
  }

  /// The context of the same order after `child`, or the longest one with children.
  Context shift(Context context, std::int64_t child) const {
    return back_off({context.order, suffix_link(context.order + 1, child)});
  }

  /// The longest suffix of `tokens` with children, in at most 2N searches.
  Context match(std::span<const Token> tokens) const;

  /// The most frequent record of a non-empty range, the first among equals.
  std::int64_t argmax_child(Context context, Range range) const;

  /// Write the n-grams of `length` tokens of records `start`, `start + 1`, …: `length` words each.
  void spell(std::int64_t length, std::int64_t start, std::span<std::uint32_t> ngrams) const;

  /// Prefetch memory that is needed soon.
  void prefetch_record(Context context) const {
    if (context.order > 0) __builtin_prefetch(level(context.order).record(context.node));
  }
  void prefetch_children(Context context) const;
  /// The same for a context and all shorter ones, whose records are far apart.
  void prefetch_all_children(Context context) const;

 private:
  static constexpr std::int64_t kInnerWords = 4, kLeafWords = 3;  // of a record, as in graph/layout.py

  std::int64_t find_unigram(Token token) const;

  std::vector<Level> levels_;
  const std::uint32_t* unigram_index_ = nullptr;
  std::int64_t max_order_ = 0;
  Token vocabulary_size_ = kMaxVocabulary;
};

}  // namespace speculant
