// A neural model's predictions for the next token, as counts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "neural/model.hpp"

namespace speculant::neural {

/// Counts are ten-thousandths of a probability.
inline constexpr std::uint32_t kWhole = 10'000;

/// Class of a model's confidence, 0 to 10, by the count of its best proposal.
int confidence_class(std::uint32_t count);
/// Class of a model's support for a proposal, 1 to 3.
inline std::uint32_t support_class(std::uint32_t count) { return count >= 2'000 ? 3 : count >= 400 ? 2 : 1; }

struct Proposal {
  Token token;
  std::uint32_t count;
};

/// Makes proposals; reuses its buffers.
class Proposer {
 public:
  /// Return the most probable tokens after the kLookBack tokens before `end`, out of the most frequent tokens and
  /// `others`. They are in the order of rows and of `others`, and valid until the next call. Tokens that the model does
  /// not know are left out.
  std::span<const Proposal> propose(const Model& model, const Token* end, std::span<const Token> others);

 private:
  std::vector<std::int32_t> scores_;
  std::vector<std::uint32_t> rows_;   // of others
  std::vector<std::uint64_t> taken_;  // a bit for each row
  std::vector<std::uint32_t> best_;   // of scores_
  std::vector<Proposal> proposals_;
};

}  // namespace speculant::neural
