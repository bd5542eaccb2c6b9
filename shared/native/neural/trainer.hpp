// Trains a neural model on the tokens of a corpus.
//
// Sampled softmax (Bengio and Senécal 2008; Mnih and Teh 2012): each token is compared with 256 negatives, drawn by
// their counts to the power of 3/4 and shared by a block of 32 positions. The optimiser is Adagrad (Duchi, Hazan and
// Singer 2011). Training uses one thread, and neither logarithms nor random numbers of a library, so the same text
// gives the same model everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "neural/model.hpp"

namespace speculant::neural {

/// Separates documents of a text.
inline constexpr std::uint32_t kDocumentEnd = 0xFFFFFFFF;

struct Lesson {
  std::span<const std::uint32_t> token_ids;  // with kDocumentEnd between documents
  /// Parts [first, last) that are left out of training, ascending.
  std::span<const std::pair<std::int64_t, std::int64_t>> left_out;
  Token vocabulary_size;
  std::int64_t num_positions;  // to learn from; an even sample of a longer text
};

/// Train a model, or train `start` further, and return its words. Return none if there is nothing to learn from, or if
/// `goes_on` returns false; its arguments are the numbers of finished positions and of all positions. Takes about 1.1
/// KB of memory per row and 5 bytes per position.
std::vector<std::uint32_t> train(const Lesson& lesson, const Model& start,
                                 const std::function<bool(std::int64_t, std::int64_t)>& goes_on);

}  // namespace speculant::neural
