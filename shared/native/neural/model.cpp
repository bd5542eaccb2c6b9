#include "neural/model.hpp"

#include <algorithm>
#include <stdexcept>

#include "neural/vectors.hpp"

namespace speculant::neural {
namespace {

constexpr std::size_t kAlignment = 16;  // words

std::int16_t narrow(std::int32_t value) { return static_cast<std::int16_t>(std::clamp(value, INT16_MIN, INT16_MAX)); }

/// Multiply the rows of a table by a vector of the same width.
template <std::size_t size>
SPECULANT_INLINE void multiply(const std::int8_t* rows, std::size_t num_rows, const std::int16_t* values,
                               std::int32_t* products) {
  for (std::size_t row = 0; row < num_rows; ++row, rows += size) {
    std::int32_t sum = 0;
    for (std::size_t each = 0; each < size; ++each) sum += std::int16_t{rows[each]} * values[each];
    products[row] = sum;
  }
}

SPECULANT_WIDE void multiply_short(const std::int8_t* rows, std::size_t num_rows, const std::int16_t* values,
                                   std::int32_t* products) {
  multiply<kWidth>(rows, num_rows, values, products);
}

SPECULANT_WIDE void multiply_long(const std::int8_t* rows, std::size_t num_rows, const std::int16_t* values,
                                  std::int32_t* products) {
  multiply<kHidden>(rows, num_rows, values, products);
}

SPECULANT_WIDE void multiply_rows(const std::int8_t* table, std::span<const std::uint32_t> rows,
                                  const std::int16_t* values, std::int32_t* products) {
  for (std::size_t each = 0; each < rows.size(); ++each) {
    multiply<kWidth>(table + rows[each] * kWidth, 1, values, products + each);
  }
}

/// Summarise the tokens before a position: the scaled sum of the last places, and the mean. A null pointer stands for a
/// token without a row.
SPECULANT_WIDE void look_back(const std::array<const std::int8_t*, kLookBack>& rows, const std::int16_t* scales,
                              std::array<std::int32_t, kWidth>& sums, std::array<std::int16_t, kWidth>& mean) {
  for (std::size_t place = 0; place < kLookBack; ++place) {
    const std::int8_t* values = rows[place];
    if (values == nullptr) continue;
    if (place < kPlaces) {
      for (std::size_t each = 0; each < kWidth; ++each) {
        sums[each] += scales[place * kWidth + each] * std::int16_t{values[each]};
      }
    }
    const std::int16_t weight = kMeanWeights[place];
    for (std::size_t each = 0; each < kWidth; ++each) {
      mean[each] = static_cast<std::int16_t>(mean[each] + weight * values[each]);
    }
  }
}

}  // namespace

Layout::Layout(std::size_t vocabulary_size, std::size_t num_rows) {
  std::size_t end = kHeaderSize;
  const auto place = [&](std::size_t num_bytes) {
    const std::size_t start = (end + kAlignment - 1) / kAlignment * kAlignment;
    end = start + (num_bytes + 3) / 4;
    return start;
  };
  index = place(2 * vocabulary_size);
  tokens = place(4 * num_rows);
  bias = place(2 * num_rows);
  context = place(num_rows * kWidth);
  output = place(num_rows * kWidth);
  hidden_in = place(kHidden * kWidth);
  hidden_out = place(kHidden * kWidth);
  hidden_bias = place(2 * kHidden);
  scales = place(2 * (kPlaces + 1) * kWidth);
  num_words = end;
}

Model::Model(std::span<const std::uint32_t> words) {
  const auto refuse = [] { throw std::invalid_argument("not a neural model of this release"); };
  if (words.size() < kHeaderSize || words[kHeaderVersion] != kVersion) refuse();
  if (words[kVocabularySize] > static_cast<std::uint32_t>(kMaxVocabulary)) refuse();
  if (words[kNumRows] == 0 || words[kNumRows] > kMaxRows) refuse();
  for (int each = kFractionR; each <= kFractionB; ++each) {
    if (words[static_cast<std::size_t>(each)] > kMostFraction) refuse();
  }
  const Layout layout(words[kVocabularySize], words[kNumRows]);
  if (words.size() != layout.num_words) refuse();
  vocabulary_size_ = words[kVocabularySize], num_rows_ = words[kNumRows];
  index_ = reinterpret_cast<const std::uint16_t*>(words.data() + layout.index);
  tokens_ = words.data() + layout.tokens;
  const auto bytes = [&](std::size_t start, std::size_t size) {
    return std::span(reinterpret_cast<const std::int8_t*>(words.data() + start), size);
  };
  const auto halves = [&](std::size_t start, std::size_t size) {
    return std::span(reinterpret_cast<const std::int16_t*>(words.data() + start), size);
  };
  const auto fraction = [&](Header header) { return static_cast<int>(words[header]); };
  tables_ = {.context = bytes(layout.context, num_rows_ * kWidth),
             .output = bytes(layout.output, num_rows_ * kWidth),
             .hidden_in = bytes(layout.hidden_in, kHidden * kWidth),
             .hidden_out = bytes(layout.hidden_out, kHidden * kWidth),
             .bias = halves(layout.bias, num_rows_),
             .hidden_bias = halves(layout.hidden_bias, kHidden),
             .scales = halves(layout.scales, (kPlaces + 1) * kWidth),
             .fraction_r = fraction(kFractionR),
             .fraction_v = fraction(kFractionV),
             .fraction_a = fraction(kFractionA),
             .fraction_b = fraction(kFractionB)};
}

Query Model::query(const Token* end) const {
  std::array<const std::int8_t*, kLookBack> rows;
  for (std::size_t place = 0; place < kLookBack; ++place) {
    const std::uint32_t row = row_of(end[-1 - static_cast<std::ptrdiff_t>(place)]);
    rows[place] = row == num_rows_ ? nullptr : tables_.context.data() + row * kWidth;
  }
  std::array<std::int32_t, kWidth> sums{};
  std::array<std::int16_t, kWidth> mean{};
  look_back(rows, tables_.scales.data(), sums, mean);
  const std::int16_t* scales = tables_.scales.data() + kPlaces * kWidth;
  Query x;
  for (std::size_t each = 0; each < kWidth; ++each) {
    const std::int32_t sum = sums[each] + (scales[each] * mean[each] >> (kMeanFraction - kMeanFactorBits));
    x[each] = narrow(sum >> (kScaleFraction - kFraction + tables_.fraction_r));
  }
  std::array<std::int32_t, kHidden> products;
  std::array<std::int16_t, kHidden> hidden;
  multiply_short(tables_.hidden_in.data(), kHidden, x.data(), products.data());
  for (std::size_t each = 0; each < kHidden; ++each) {
    const std::int32_t value = (products[each] >> tables_.fraction_a) + tables_.hidden_bias[each];
    hidden[each] = std::max<std::int16_t>(narrow(value), 0);
  }
  multiply_long(tables_.hidden_out.data(), kWidth, hidden.data(), products.data());
  Query query;
  for (std::size_t each = 0; each < kWidth; ++each) {
    query[each] = narrow(x[each] + (products[each] >> tables_.fraction_b));
  }
  return query;
}

void Model::score_first(const Query& query, std::span<std::int32_t> scores) const {
  multiply_short(tables_.output.data(), scores.size(), query.data(), scores.data());
  for (std::size_t row = 0; row < scores.size(); ++row) {
    scores[row] = (scores[row] >> tables_.fraction_v) + tables_.bias[row];
  }
}

void Model::score(const Query& query, std::span<const std::uint32_t> rows, std::span<std::int32_t> scores) const {
  multiply_rows(tables_.output.data(), rows, query.data(), scores.data());
  for (std::size_t each = 0; each < rows.size(); ++each) {
    scores[each] = (scores[each] >> tables_.fraction_v) + tables_.bias[rows[each]];
  }
}

}  // namespace speculant::neural
