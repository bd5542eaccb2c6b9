// Trains a neural model on the tokens of a corpus.
//
// Sampled softmax (Bengio and Senécal 2008; Mnih and Teh 2012): a token is told from 256 others that are drawn by their
// counts to the power of 3/4, the same for a block of 32 positions. Steps are Adagrad's (Duchi, Hazan and Singer 2011).
// There is one thread, and neither a library's logarithms nor its random numbers: the same text gives the same model
// everywhere.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "neural/model.hpp"

namespace speculant::neural {

/// Stands between documents of a text.
inline constexpr std::uint32_t kDocumentEnd = 0xFFFFFFFF;

struct Lesson {
  std::span<const std::uint32_t> token_ids;  // and kDocumentEnd
  /// Parts that nothing is learned from, [first, last), ascending.
  std::span<const std::pair<std::int64_t, std::int64_t>> left_out;
  Token vocabulary_size;
  std::int64_t num_positions;  // that are learned from; of a longer text an even sample
};

/// Train a model, or `start` further; return its words, or none if `goes_on`, which is told how many positions are done
/// and all, returns false, or if there is nothing to learn from. Takes about 1.1 KB a row and 5 bytes a position.
std::vector<std::uint32_t> train(const Lesson& lesson, const Model& start,
                                 const std::function<bool(std::int64_t, std::int64_t)>& goes_on);

}  // namespace speculant::neural
