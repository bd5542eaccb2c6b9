// Choice of a token by the scores of a whole vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace speculant {

/// The token with the largest sum of score and Gumbel noise, and that sum; NaN if a score is NaN or +inf.
std::pair<std::int64_t, double> gumbel_argmax(std::span<const float> scores, std::uint64_t noise_key);

/// Tokens whose probability is about the smallest kept one, ascending.
struct TopPBorder {
  std::vector<std::int64_t> tokens;
  double mass = 0;  // of all less probable tokens
};

/// Copy the scores of tokens above the border's probability; set all other scores to -inf.
///
/// All arrays have the same size. Tokens below the border have at most the total mass `most_removed`.
TopPBorder top_p_filter(std::span<const float> scores, std::span<const float> probabilities, float most_removed,
                        std::span<float> kept);

}  // namespace speculant
