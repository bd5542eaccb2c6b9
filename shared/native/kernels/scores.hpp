// Choosing a token by the scores of a whole vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace speculant {

/// The token with the largest sum of score and Gumbel noise, and that sum; NaN where a score is NaN or +inf.
std::pair<std::int64_t, double> gumbel_argmax(std::span<const float> scores, std::uint64_t noise_key);

/// Tokens whose probabilities are about as large as the least one that stays, ascending.
struct TopPBorder {
  std::vector<std::int64_t> tokens;
  double mass = 0;  // of all less probable tokens
};

/// Copy the scores of tokens more probable than the border's; set all other scores to -inf.
///
/// All arrays are of one size. Tokens below the border hold at most `most_removed` together.
TopPBorder top_p_filter(std::span<const float> scores, std::span<const float> probabilities, float most_removed,
                        std::span<float> kept);

}  // namespace speculant
