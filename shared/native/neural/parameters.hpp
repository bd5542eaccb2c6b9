// A neural model during training: 32-bit floats, which become the words of neural/model.hpp.
#pragma once

#include <cstdint>
#include <vector>

#include "neural/model.hpp"

namespace speculant::neural {

/// Matrices row by row; scores are natural logarithms.
struct Parameters {
  std::vector<Token> tokens;                 // by row
  std::vector<float> context, output;        // R and V, [rows][kWidth]
  std::vector<float> bias;                   // [rows]
  std::vector<float> hidden_in, hidden_out;  // A, [kHidden][kWidth], and B, [kWidth][kHidden]
  std::vector<float> hidden_bias;            // [kHidden]
  std::vector<float> scales;                 // [kPlaces + 1][kWidth]
};

/// Return the words of a model: every number is rounded, and every table is scaled by the power of two that loses
/// least.
std::vector<std::uint32_t> words_of(const Parameters& parameters, Token vocabulary_size);

/// The parameters that a model was made from, up to rounding.
Parameters parameters_of(const Model& model);

}  // namespace speculant::neural
