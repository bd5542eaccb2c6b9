// The steps of training a neural model; trainer.hpp describes the method.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "neural/arithmetic.hpp"
#include "neural/parameters.hpp"
#include "neural/vectors.hpp"

namespace speculant::neural {

/// Positions per step, and negatives that a step's tokens are compared with.
inline constexpr std::size_t kBlock = 32, kNegatives = 256;
inline constexpr std::uint64_t kSeed = 1;
/// Count of a token that the text does not contain.
inline constexpr double kUnseenCount = 0.1;
/// Initial value of Adagrad's sums of squares.
inline constexpr float kFirstSquare = 1e-2F;

/// Per element of a vector, a number for each position of a block: loops over positions vectorise.
template <std::size_t size>
using Columns = std::array<std::array<float, kBlock>, size>;

/// A table, and Adagrad's sums of squares.
struct Table {
  explicit Table(std::vector<float>& values) : values(values), squares(values.size(), kFirstSquare) {}
  /// Take a gradient step, from element `first` on.
  SPECULANT_INLINE void step(std::size_t first, std::span<const float> gradient, float rate) {
    float* __restrict value = values.data() + first;
    float* __restrict square = squares.data() + first;
    for (std::size_t each = 0; each < gradient.size(); ++each) {
      square[each] += gradient[each] * gradient[each];
      value[each] -= rate * gradient[each] / std::sqrt(square[each]);
    }
  }
  const float* row(std::size_t number) const { return values.data() + number * kWidth; }
  std::vector<float>& values;
  std::vector<float> squares;
};

/// The state of training; each step learns from one block of positions.
class Training {
 public:
  /// `counts`: occurrences of the token of every row.
  Training(Parameters& parameters, std::span<const double> counts);

  /// Learn from a block's tokens that have a row. `rows`: the rows of the kLookBack tokens before the block and of its
  /// tokens.
  void learn(std::span<const std::uint32_t> rows, float rate);

 private:
  void look_back(std::span<const std::uint32_t> rows);
  void forward();
  void compare();
  void backward();
  void step(float rate);

  std::size_t num_rows_;
  Table context_, output_, bias_, hidden_in_, hidden_out_, hidden_bias_, scales_;
  std::vector<std::uint32_t> drawn_;  // rows, in proportion to their noise probability
  std::vector<float> log_noise_;      // logarithm of a row's expected number among the negatives
  Chance chance_{kSeed};

  // The block: rows of the tokens before each position, num_rows_ for none, and the row of its own token.
  std::array<std::array<std::uint32_t, kPlaces>, kBlock> before_;
  std::array<std::uint32_t, kBlock> targets_;
  std::array<std::uint32_t, kNegatives> negatives_;
  Columns<kWidth> mean_, x_, mask_, query_, query_gradient_, x_gradient_;
  Columns<kHidden> hidden_, hidden_gradient_;
  Columns<kNegatives> scores_;
  std::array<float, kBlock> target_gradient_;
  std::array<std::array<float, kWidth>, kBlock> x_rows_, query_rows_, gradient_rows_;
  std::array<std::array<float, kHidden>, kBlock> hidden_rows_;
  std::array<std::array<float, kWidth>, kNegatives> negative_gradient_;
  std::array<float, kHidden * kWidth> matrix_gradient_;
};

}  // namespace speculant::neural
