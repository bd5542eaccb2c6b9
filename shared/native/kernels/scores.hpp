// Choice of a token by the scores of a whole vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace speculant {

/// The token with the largest sum of score and Gumbel noise, and that sum; NaN if a score is NaN or +inf.
std::pair<std::int64_t, double> gumbel_argmax(std::span<const float> scores, std::uint64_t noise_key);

/// Tokens with about the least kept probability, ascending.
struct TopPBorder {
  std::vector<std::int64_t> tokens;
  double mass = 0;  // of all less probable tokens
};

/// Copy the scores of tokens more probable than the border's; set all other scores to -inf.
///
/// All arrays have one size. Tokens below the border have at most the mass `most_removed` together.
TopPBorder top_p_filter(std::span<const float> scores, std::span<const float> probabilities, float most_removed,
                        std::span<float> kept);

}  // namespace speculant
