// A neural model as it is trained: 32-bit floats, which become the words of neural/model.hpp.
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

/// The words of a model: every number rounded, and every table scaled by the power of two that loses least.
std::vector<std::uint32_t> words_of(const Parameters& parameters, Token vocabulary_size);

/// The parameters that a model was made of, as far as it has kept them.
Parameters parameters_of(const Model& model);

}  // namespace speculant::neural
