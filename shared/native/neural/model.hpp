// A tiny language model over the tokens of the corpus, for text that does not occur in the corpus word for word.
//
// It is a log-bilinear model (Mnih and Hinton 2007) with one hidden layer:
//
//   m = the mean of R[w] over the last 80 tokens, with larger weights for newer ones
//   x = sum of c[k] * R[w_k] over the last 8 tokens, newest first, + 4 c[8] * m     (* of vectors: element by element)
//   h = max(A x + a, 0)
//   q = x + B h
//   score(y) = V[y] . q + bias[y], and P(y) is proportional to 2 ^ score(y)
//
// R, V, A and B are 8-bit numbers, and all other numbers are 16 bits wide. Sums are 32 bits wide and can't overflow,
// whatever a file holds. So the result is the same on every processor, and in tests/support/neural_reference.py.
//
// A row belongs to a token; the most frequent token has row 0. Words of a model, with every array at a multiple of 64
// bytes:
//
//   header   version, vocabulary size, rows, and the binary places of R, V, A, B     7 words
//   index    token -> its row plus 1, 0 for none                                     16 bits for each of the vocabulary
//   tokens   row -> token                                                            32 bits for each row
//   bias     in 1/1024 of an octave                                                  16 bits for each row
//   R, V     [rows][64]                                                              8 bits each
//   A, B     [128][64] and [64][128]                                                 8 bits each
//   a        [128], in 1/1024                                                        16 bits each
//   c        [9][64], in 1/4096                                                      16 bits each
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "trie.hpp"

namespace speculant::neural {

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kWidth = 64, kHidden = 128;
/// Number of last tokens that x scales one by one, and number of tokens in the mean.
inline constexpr std::size_t kPlaces = 8, kLookBack = 80;
/// Maximum number of tokens with a row: a row number has 16 bits, and 0 means none. The vocabulary of gpt-oss has
/// 200,000 ids, and a corpus of 12 MB of English uses 60,000 of them.
inline constexpr std::size_t kMaxRows = (1 << 16) - 1;
/// Binary places of x, h, q, a and scores; of c; and the most of any table.
inline constexpr int kFraction = 10, kScaleFraction = 12, kMostFraction = 16;
/// Weight of m relative to a place, as a power of two, and its binary places beyond those of R.
inline constexpr int kMeanFactorBits = 2, kMeanFraction = 8;
enum Header { kHeaderVersion, kVocabularySize, kNumRows, kFractionR, kFractionV, kFractionA, kFractionB, kHeaderSize };

/// Weights of the mean: 256 times 0.03 * 0.97 ^ k for the token k places before the last one, rounded.
inline constexpr auto kMeanWeights = [] {
  std::array<std::int16_t, kLookBack> weights{};
  double weight = 0.03 * (1 << kMeanFraction);
  for (auto& each : weights) each = static_cast<std::int16_t>(weight + 0.5), weight *= 0.97;
  return weights;
}();

/// Positions of a model's arrays, in words.
struct Layout {
  Layout(std::size_t vocabulary_size, std::size_t num_rows);

  std::size_t index, tokens, bias, context, output, hidden_in, hidden_out, hidden_bias, scales, num_words;
};

using Query = std::array<std::int16_t, kWidth>;

/// A read-only view of a model's words, which must outlive it. Whatever the words hold, reads stay inside them.
class Model {
 public:
  /// No model.
  Model() = default;
  /// Throws std::invalid_argument if the words are not a model.
  explicit Model(std::span<const std::uint32_t> words);

  bool empty() const { return num_rows_ == 0; }
  Token vocabulary_size() const { return static_cast<Token>(vocabulary_size_); }
  std::uint32_t num_rows() const { return num_rows_; }
  Token token(std::uint32_t row) const { return static_cast<Token>(tokens_[row] & kTokenMask); }
  /// The row of a token, num_rows() if it has none.
  std::uint32_t row_of(Token token) const {
    if (token < 0 || static_cast<std::uint32_t>(token) >= vocabulary_size_) return num_rows_;
    const std::uint32_t row = index_[token] - 1U;  // none wraps around
    return row < num_rows_ ? row : num_rows_;
  }
  /// Return the query vector of the kLookBack tokens before `end`.
  Query query(const Token* end) const;
  /// The scores of some rows, in 1/1024 of an octave.
  void score(const Query& query, std::span<const std::uint32_t> rows, std::span<std::int32_t> scores) const;
  /// The scores of the first rows.
  void score_first(const Query& query, std::span<std::int32_t> scores) const;
  void prefetch(std::uint32_t row) const { __builtin_prefetch(tables_.output.data() + row * kWidth); }

  /// All tables, and the binary places of the 8-bit tables.
  struct Tables {
    std::span<const std::int8_t> context, output, hidden_in, hidden_out;
    std::span<const std::int16_t> bias, hidden_bias, scales;
    int fraction_r, fraction_v, fraction_a, fraction_b;
  };
  const Tables& tables() const { return tables_; }

 private:
  std::uint32_t vocabulary_size_ = 0, num_rows_ = 0;
  const std::uint16_t* index_ = nullptr;
  const std::uint32_t* tokens_ = nullptr;
  Tables tables_ = {};
};

}  // namespace speculant::neural
