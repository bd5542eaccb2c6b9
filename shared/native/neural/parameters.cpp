#include "neural/parameters.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

namespace speculant::neural {
namespace {

// Bits by which the largest values may exceed the range, for the precision of the others: two bits clip values above a
// quarter of the largest.
constexpr int kMostBeyond = 2;
constexpr float kOctave = std::numbers::log2e_v<float>;  // octaves per unit of a natural logarithm

template <class Number>
Number rounded(float value) {
  constexpr float low = std::numeric_limits<Number>::min(), high = std::numeric_limits<Number>::max();
  const float within = value < low ? low : value > high ? high : value;
  return static_cast<Number>(static_cast<std::int32_t>(within + (within < 0.0F ? -0.5F : 0.5F)));
}

float power_of_two(int exponent) { return std::ldexp(1.0F, exponent); }

/// The number of binary places with the least squared error of the 8-bit numbers. The largest values may be clipped.
int best_fraction(std::span<const float> values, float factor) {
  float most = 0.0F;
  for (float value : values) most = std::max(most, std::abs(value * factor));
  int whole = kMostFraction;  // keeps all values within range
  while (whole > 0 && most * power_of_two(whole) > 127.0F) --whole;
  int best = whole;
  double least = std::numeric_limits<double>::infinity();
  for (int fraction = whole; fraction <= std::min(whole + kMostBeyond, kMostFraction); ++fraction) {
    const float scale = factor * power_of_two(fraction), unit = power_of_two(-fraction);
    double sum = 0.0;
    for (float value : values) {
      const float error = value * factor - unit * rounded<std::int8_t>(value * scale);
      sum += double{error} * error;
    }
    if (sum < least) least = sum, best = fraction;
  }
  return best;
}

template <class Number>
void store(std::vector<std::uint32_t>& words, std::size_t start, std::span<const float> values, float scale) {
  auto* stored = reinterpret_cast<Number*>(words.data() + start);
  for (std::size_t each = 0; each < values.size(); ++each) stored[each] = rounded<Number>(values[each] * scale);
}

template <class Number>
std::vector<float> scaled(std::span<const Number> values, float scale) {
  std::vector<float> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), [=](Number each) { return scale * each; });
  return result;
}

}  // namespace

std::vector<std::uint32_t> words_of(const Parameters& parameters, Token vocabulary_size) {
  const std::size_t num_rows = parameters.tokens.size();
  const Layout layout(static_cast<std::size_t>(vocabulary_size), num_rows);
  std::vector<std::uint32_t> words(layout.num_words);
  words[kHeaderVersion] = kVersion;
  words[kVocabularySize] = static_cast<std::uint32_t>(vocabulary_size);
  words[kNumRows] = static_cast<std::uint32_t>(num_rows);
  auto* index = reinterpret_cast<std::uint16_t*>(words.data() + layout.index);
  for (std::size_t row = 0; row < num_rows; ++row) {
    index[parameters.tokens[row]] = static_cast<std::uint16_t>(row + 1);
    words[layout.tokens + row] = static_cast<std::uint32_t>(parameters.tokens[row]);
  }
  const auto table = [&](Header header, std::size_t start, std::span<const float> values, float factor) {
    const int fraction = best_fraction(values, factor);
    words[header] = static_cast<std::uint32_t>(fraction);
    store<std::int8_t>(words, start, values, factor * power_of_two(fraction));
  };
  table(kFractionR, layout.context, parameters.context, 1.0F);
  table(kFractionV, layout.output, parameters.output, kOctave);
  table(kFractionA, layout.hidden_in, parameters.hidden_in, 1.0F);
  table(kFractionB, layout.hidden_out, parameters.hidden_out, 1.0F);
  store<std::int16_t>(words, layout.bias, parameters.bias, kOctave * (1 << kFraction));
  store<std::int16_t>(words, layout.hidden_bias, parameters.hidden_bias, 1 << kFraction);
  store<std::int16_t>(words, layout.scales, parameters.scales, 1 << kScaleFraction);
  return words;
}

Parameters parameters_of(const Model& model) {
  const Model::Tables tables = model.tables();
  Parameters parameters;
  for (std::uint32_t row = 0; row < model.num_rows(); ++row) parameters.tokens.push_back(model.token(row));
  parameters.context = scaled(tables.context, power_of_two(-tables.fraction_r));
  parameters.output = scaled(tables.output, power_of_two(-tables.fraction_v) / kOctave);
  parameters.bias = scaled(tables.bias, power_of_two(-kFraction) / kOctave);
  parameters.hidden_in = scaled(tables.hidden_in, power_of_two(-tables.fraction_a));
  parameters.hidden_out = scaled(tables.hidden_out, power_of_two(-tables.fraction_b));
  parameters.hidden_bias = scaled(tables.hidden_bias, power_of_two(-kFraction));
  parameters.scales = scaled(tables.scales, power_of_two(-kScaleFraction));
  return parameters;
}

}  // namespace speculant::neural
