#include "neural/training.hpp"

#include <algorithm>
#include <numeric>

#include "neural/vectors.hpp"

namespace speculant::neural {
namespace {

// Factor of the learning rate for parameters that every position changes.
constexpr float kDenseRate = 0.3F;
// Share of the elements of x that a step drops.
constexpr float kDropout = 0.1F;
// Negatives with a smaller probability change nothing, and a smaller sum of their probabilities changes no bias.
constexpr float kLeastProbability = 1e-4F, kLeastSum = 1e-3F;
constexpr std::size_t kDrawn = 1 << 20;  // size of the table that negatives are drawn from

template <std::size_t size>
SPECULANT_INLINE void transpose(const Columns<size>& from, std::array<std::array<float, size>, kBlock>& to) {
  for (std::size_t each = 0; each < size; ++each) {
    for (std::size_t position = 0; position < kBlock; ++position) to[position][each] = from[each][position];
  }
}

/// Add factor * values to a sum.
SPECULANT_INLINE void add(float factor, const float* __restrict values, std::array<float, kWidth>& sum) {
  float* __restrict sums = sum.data();
  for (std::size_t each = 0; each < kWidth; ++each) sums[each] += factor * values[each];
}

/// Add matrix * from to `to`; the matrix has a row per element of `to`.
template <std::size_t from_size, std::size_t to_size>
SPECULANT_INLINE void multiply(const std::vector<float>& matrix, const Columns<from_size>& from, Columns<to_size>& to) {
  for (std::size_t row = 0; row < to_size; ++row) {
    std::array<float, kBlock> sums = to[row];
    for (std::size_t each = 0; each < from_size; ++each) {
      const float factor = matrix[row * from_size + each];
      for (std::size_t position = 0; position < kBlock; ++position) sums[position] += factor * from[each][position];
    }
    to[row] = sums;
  }
}

/// Add the transposed matrix * from to `to`; the matrix has a row per element of `from`.
template <std::size_t from_size, std::size_t to_size>
SPECULANT_INLINE void multiply_transposed(const std::vector<float>& matrix, const Columns<from_size>& from,
                                          Columns<to_size>& to) {
  for (std::size_t each = 0; each < to_size; ++each) {
    std::array<float, kBlock> sums = to[each];
    for (std::size_t row = 0; row < from_size; ++row) {
      const float factor = matrix[row * to_size + each];
      for (std::size_t position = 0; position < kBlock; ++position) sums[position] += factor * from[row][position];
    }
    to[each] = sums;
  }
}

/// The gradient of a matrix: for each row, the sum over positions of left * right.
template <std::size_t rows, std::size_t columns>
SPECULANT_INLINE void outer(const Columns<rows>& left, const std::array<std::array<float, columns>, kBlock>& right,
                            std::array<float, rows * columns>& gradient) {
  for (std::size_t row = 0; row < rows; ++row) {
    std::array<float, columns> sums{};
    for (std::size_t position = 0; position < kBlock; ++position) {
      const float factor = left[row][position];
      for (std::size_t each = 0; each < columns; ++each) sums[each] += factor * right[position][each];
    }
    std::copy(sums.begin(), sums.end(), gradient.begin() + static_cast<std::ptrdiff_t>(row * columns));
  }
}

}  // namespace

Training::Training(Parameters& parameters, std::span<const double> counts)
    : num_rows_(parameters.tokens.size()),
      context_(parameters.context),
      output_(parameters.output),
      bias_(parameters.bias),
      hidden_in_(parameters.hidden_in),
      hidden_out_(parameters.hidden_out),
      hidden_bias_(parameters.hidden_bias),
      scales_(parameters.scales),
      drawn_(kDrawn),
      log_noise_(num_rows_) {
  std::vector<double> noise(num_rows_);
  double total = 0.0;
  for (std::size_t row = 0; row < num_rows_; ++row) {
    noise[row] = three_quarters_power(counts[row] + kUnseenCount);
    total += noise[row];
  }
  std::size_t row = 0;
  double sum = noise[0];
  for (std::size_t place = 0; place < kDrawn; ++place) {
    while (row + 1 < num_rows_ && sum < total * (static_cast<double>(place) + 0.5) / kDrawn) sum += noise[++row];
    drawn_[place] = static_cast<std::uint32_t>(row);
  }
  for (std::size_t each = 0; each < num_rows_; ++each) {
    log_noise_[each] = static_cast<float>(logarithm(noise[each] / total * kNegatives));
  }
}

/// Compute the vectors that a block begins with: mean_ and x_.
SPECULANT_WIDE void Training::look_back(std::span<const std::uint32_t> rows) {
  for (auto* columns : {&mean_, &x_}) {
    for (auto& column : *columns) column.fill(0.0F);
  }
  constexpr float kKept = 1.0F / (1.0F - kDropout);
  constexpr std::uint64_t kLeast = static_cast<std::uint64_t>(kDropout * 65'536);
  for (auto& column : mask_) {
    for (std::size_t position = 0; position < kBlock; position += 4) {
      const std::uint64_t bits = chance_.word();
      for (std::size_t each = 0; each < 4; ++each) {
        column[position + each] = (bits >> 16 * each & 0xFFFF) < kLeast ? 0.0F : kKept;
      }
    }
  }
  for (std::size_t position = 0; position < kBlock; ++position) {
    const std::size_t end = kLookBack + position;
    targets_[position] = rows[end] < num_rows_ ? rows[end] : static_cast<std::uint32_t>(num_rows_);
    before_[position].fill(static_cast<std::uint32_t>(num_rows_));
    std::array<float, kWidth> mean{}, sum{};
    for (std::size_t place = 0; place < kLookBack; ++place) {
      const std::uint32_t row = rows[end - 1 - place];
      if (row > num_rows_) break;  // the end of a document
      if (row == num_rows_) continue;
      const float* values = context_.row(row);
      const float weight = static_cast<float>(kMeanWeights[place]) / (1 << kMeanFraction);
      add(weight, values, mean);
      if (place >= kPlaces) continue;
      before_[position][place] = row;
      const float* scales = scales_.row(place);
      for (std::size_t each = 0; each < kWidth; ++each) sum[each] += scales[each] * values[each];
    }
    const float* scales = scales_.row(kPlaces);
    for (std::size_t each = 0; each < kWidth; ++each) {
      mean_[each][position] = mean[each] *= 1 << kMeanFactorBits;
      x_[each][position] = (sum[each] + scales[each] * mean[each]) * mask_[each][position];
    }
  }
}

SPECULANT_WIDE void Training::forward() {
  for (std::size_t each = 0; each < kHidden; ++each) hidden_[each].fill(hidden_bias_.values[each]);
  multiply(hidden_in_.values, x_, hidden_);
  for (auto& column : hidden_) {
    for (float& value : column) value = value > 0.0F ? value : 0.0F;
  }
  query_ = x_;
  multiply(hidden_out_.values, hidden_, query_);
  transpose(query_, query_rows_);
}

/// Compare every target with the same negatives. Afterwards scores_ and target_gradient_ hold gradients of scores.
SPECULANT_WIDE void Training::compare() {
  for (std::uint32_t& row : negatives_) row = drawn_[chance_.below(kDrawn)];
  for (std::size_t number = 0; number < kNegatives; ++number) {
    const std::uint32_t row = negatives_[number];
    const float* values = output_.row(row);
    std::array<float, kBlock> sums;
    sums.fill(bias_.values[row] - log_noise_[row]);
    for (std::size_t each = 0; each < kWidth; ++each) {
      for (std::size_t position = 0; position < kBlock; ++position)
        sums[position] += values[each] * query_[each][position];
    }
    for (std::size_t position = 0; position < kBlock; ++position) {
      scores_[number][position] = targets_[position] == row ? -1e9F : sums[position];
    }
  }
  std::array<float, kBlock> target, most, total;
  for (std::size_t position = 0; position < kBlock; ++position) {
    const std::uint32_t row = targets_[position];
    float sum = 0.0F;
    if (row < num_rows_) {
      const float* values = output_.row(row);
      for (std::size_t each = 0; each < kWidth; ++each) sum += values[each] * query_rows_[position][each];
      sum += bias_.values[row] - log_noise_[row];
    }
    target[position] = sum;
  }
  most = target;
  for (const auto& scores : scores_) {
    for (std::size_t position = 0; position < kBlock; ++position) {
      most[position] = scores[position] > most[position] ? scores[position] : most[position];
    }
  }
  for (std::size_t position = 0; position < kBlock; ++position) {
    total[position] = target[position] = exponential(target[position] - most[position]);
  }
  for (auto& scores : scores_) {
    for (std::size_t position = 0; position < kBlock; ++position) {
      total[position] += scores[position] = exponential(scores[position] - most[position]);
    }
  }
  for (std::size_t position = 0; position < kBlock; ++position) {
    const bool is_known = targets_[position] < num_rows_;  // other targets teach nothing
    total[position] = is_known ? 1.0F / total[position] : 0.0F;
    target_gradient_[position] = is_known ? target[position] * total[position] - 1.0F : 0.0F;
  }
  for (auto& scores : scores_) {
    for (std::size_t position = 0; position < kBlock; ++position) scores[position] *= total[position];
  }
}

SPECULANT_WIDE void Training::backward() {
  for (std::size_t position = 0; position < kBlock; ++position) {
    const std::uint32_t row = targets_[position];
    gradient_rows_[position].fill(0.0F);
    if (row == num_rows_) continue;
    for (std::size_t each = 0; each < kWidth; ++each) {
      gradient_rows_[position][each] = target_gradient_[position] * output_.row(row)[each];
    }
  }
  for (std::size_t number = 0; number < kNegatives; ++number) {
    const float* values = output_.row(negatives_[number]);
    auto& gradient = negative_gradient_[number];
    gradient.fill(0.0F);
    for (std::size_t position = 0; position < kBlock; ++position) {
      const float share = scores_[number][position];
      if (share < kLeastProbability) continue;
      add(share, values, gradient_rows_[position]);
      add(share, query_rows_[position].data(), gradient);
    }
  }
  for (std::size_t each = 0; each < kWidth; ++each) {
    for (std::size_t position = 0; position < kBlock; ++position) {
      query_gradient_[each][position] = gradient_rows_[position][each];
    }
  }
  for (auto& column : hidden_gradient_) column.fill(0.0F);
  multiply_transposed(hidden_out_.values, query_gradient_, hidden_gradient_);
  for (std::size_t each = 0; each < kHidden; ++each) {
    for (std::size_t position = 0; position < kBlock; ++position) {
      if (!(hidden_[each][position] > 0.0F)) hidden_gradient_[each][position] = 0.0F;
    }
  }
  x_gradient_ = query_gradient_;
  multiply_transposed(hidden_in_.values, hidden_gradient_, x_gradient_);
}

SPECULANT_WIDE void Training::step(float rate) {
  const float dense = kDenseRate * rate;
  for (std::size_t position = 0; position < kBlock; ++position) {
    const std::uint32_t row = targets_[position];
    if (row == num_rows_) continue;
    std::array<float, kWidth> gradient = query_rows_[position];
    for (float& each : gradient) each *= target_gradient_[position];
    output_.step(row * kWidth, gradient, rate);
    bias_.step(row, std::span(&target_gradient_[position], 1), dense);
  }
  for (std::size_t number = 0; number < kNegatives; ++number) {
    const float sum = std::accumulate(scores_[number].begin(), scores_[number].end(), 0.0F);
    if (sum < kLeastSum) continue;
    output_.step(negatives_[number] * kWidth, negative_gradient_[number], rate);
    bias_.step(negatives_[number], std::span(&sum, 1), dense);
  }
  transpose(x_, x_rows_);
  transpose(hidden_, hidden_rows_);
  outer(query_gradient_, hidden_rows_, matrix_gradient_);
  hidden_out_.step(0, matrix_gradient_, dense);
  outer(hidden_gradient_, x_rows_, matrix_gradient_);
  hidden_in_.step(0, matrix_gradient_, dense);
  std::array<float, kHidden> of_hidden;
  for (std::size_t each = 0; each < kHidden; ++each) {
    of_hidden[each] = std::accumulate(hidden_gradient_[each].begin(), hidden_gradient_[each].end(), 0.0F);
  }
  hidden_bias_.step(0, of_hidden, dense);
  for (std::size_t each = 0; each < kWidth; ++each) {
    for (std::size_t position = 0; position < kBlock; ++position) x_gradient_[each][position] *= mask_[each][position];
  }
  std::array<float, (kPlaces + 1) * kWidth> of_scales{};
  for (std::size_t each = 0; each < kWidth; ++each) {
    for (std::size_t position = 0; position < kBlock; ++position) {
      of_scales[kPlaces * kWidth + each] += x_gradient_[each][position] * mean_[each][position];
    }
  }
  transpose(x_gradient_, gradient_rows_);
  for (std::size_t position = 0; position < kBlock; ++position) {
    for (std::size_t place = 0; place < kPlaces; ++place) {
      const std::uint32_t row = before_[position][place];
      if (row == num_rows_) continue;
      std::array<float, kWidth> gradient;
      for (std::size_t each = 0; each < kWidth; ++each) {
        of_scales[place * kWidth + each] += gradient_rows_[position][each] * context_.row(row)[each];
        gradient[each] = gradient_rows_[position][each] * scales_.row(place)[each];
      }
      context_.step(row * kWidth, gradient, rate);
    }
  }
  scales_.step(0, of_scales, dense);
}

void Training::learn(std::span<const std::uint32_t> rows, float rate) {
  look_back(rows);
  forward();
  compare();
  backward();
  step(rate);
}

}  // namespace speculant::neural
