#include "neural/proposals.hpp"

#include <algorithm>
#include <array>

#include "neural/vectors.hpp"

namespace speculant::neural {
namespace {

// The most frequent tokens, which are always scored, and the most other tokens that are scored.
constexpr std::size_t kFrequent = 512, kMostOthers = 1'024;
// Limits of the kept proposals: more than one in kLeastShare. While there are too many, the bound is doubled.
constexpr std::size_t kMostProposals = 32;
constexpr std::uint32_t kLeastShare = 500;

// 2 ^ -x for x from 0 to 1, in units of kOne, as a polynomial with an error below 0.00008. The weights of all scored
// tokens add up to less than 2 ^ 32.
constexpr int kOneBits = 20;
constexpr std::int32_t kTerms[] = {1'048'495, 724'548, 241'149, 40'846};
static_assert((kFrequent + kMostOthers) << kOneBits < std::size_t{1} << 32);

/// Turn scores, in 1/1024 of an octave, into weights 2 ^ (score - most).
SPECULANT_WIDE std::uint32_t weigh(std::int32_t* scores, std::size_t size, std::int32_t most) {
  std::uint32_t total = 0;
  for (std::size_t each = 0; each < size; ++each) {
    const std::int32_t distance = most - scores[each], rest = distance & ((1 << kFraction) - 1);
    const std::int32_t octaves = std::min(distance >> kFraction, 31);
    std::int32_t power = kTerms[2] - (kTerms[3] * rest >> kFraction);
    power = kTerms[0] - ((kTerms[1] - (power * rest >> kFraction)) * rest >> kFraction);
    scores[each] = power >> octaves;
    total += static_cast<std::uint32_t>(scores[each]);
  }
  return total;
}

SPECULANT_WIDE std::int32_t largest(const std::int32_t* scores, std::size_t size) {
  std::int32_t most = scores[0];
  for (std::size_t each = 1; each < size; ++each) most = std::max(most, scores[each]);
  return most;
}

}  // namespace

int confidence_class(std::uint32_t count) {
  constexpr std::array<std::uint32_t, 10> kBounds = {300, 600, 1'000, 1'700, 2'700, 4'000, 5'500, 7'000, 8'500, 9'500};
  return static_cast<int>(std::count_if(kBounds.begin(), kBounds.end(), [=](auto bound) { return count > bound; }));
}

std::span<const Proposal> Proposer::propose(const Model& model, const Token* end, std::span<const Token> others) {
  const auto num_frequent = static_cast<std::uint32_t>(std::min<std::size_t>(kFrequent, model.num_rows()));
  taken_.resize(model.num_rows() / 64 + 1);
  rows_.clear();
  for (Token token : others) {
    const std::uint32_t row = model.row_of(token);
    if (row < num_frequent || row == model.num_rows() || taken_[row / 64] >> row % 64 & 1) continue;
    if (rows_.size() == kMostOthers) break;
    taken_[row / 64] |= std::uint64_t{1} << row % 64;
    rows_.push_back(row);
    model.prefetch(row);
  }
  const Query query = model.query(end);
  scores_.resize(num_frequent + rows_.size());
  model.score_first(query, std::span(scores_).first(num_frequent));
  model.score(query, rows_, std::span(scores_).subspan(num_frequent));
  for (const std::uint32_t row : rows_) taken_[row / 64] = 0;
  const std::uint32_t total = weigh(scores_.data(), scores_.size(), largest(scores_.data(), scores_.size()));
  std::uint32_t least = total / kLeastShare;
  best_.resize(scores_.size());
  std::size_t num_kept = 0;
  for (std::uint32_t each = 0; each < scores_.size(); ++each) {  // without a branch, which would be mispredicted
    best_[num_kept] = each;
    num_kept += static_cast<std::uint32_t>(scores_[each]) > least;
  }
  best_.resize(num_kept);
  while (best_.size() > kMostProposals) {
    least *= 2;
    std::erase_if(best_, [&](std::uint32_t each) { return static_cast<std::uint32_t>(scores_[each]) <= least; });
  }
  proposals_.clear();
  for (const std::uint32_t each : best_) {
    const auto weight = static_cast<std::uint64_t>(scores_[each]);
    proposals_.push_back({model.token(each < num_frequent ? each : rows_[each - num_frequent]),
                          static_cast<std::uint32_t>((weight * kWhole + total / 2) / total)});
  }
  return proposals_;
}

}  // namespace speculant::neural
