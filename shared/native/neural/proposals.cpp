#include "neural/proposals.hpp"

#include <algorithm>
#include <array>

namespace speculant::neural {
namespace {

// The most frequent tokens, which are always scored.
constexpr std::size_t kFrequent = 512;
// Proposals that are kept, those above one in kLeastShare.
constexpr std::size_t kMostProposals = 24;
constexpr std::uint64_t kLeastShare = 500;

constexpr int kTableBits = 8, kOne = 30;  // of an octave, and binary places of a weight
/// 2 ^ -(n / 256), by multiplication of whole numbers: the same everywhere.
constexpr auto kPowers = [] {
  constexpr std::uint64_t kRoot = 2'141'676'973;  // 2 ^ (31 - 1 / 256)
  std::array<std::uint32_t, 1 << kTableBits> powers{};
  std::uint64_t power = std::uint64_t{1} << 62;
  for (auto& each : powers) {
    each = static_cast<std::uint32_t>(power >> (62 - kOne));
    power = (power >> 31) * kRoot;
  }
  return powers;
}();

/// 2 ^ -distance, where the distance is in 1/1024 of an octave.
std::uint32_t weight_of(std::uint32_t distance) {
  const std::uint32_t octaves = distance >> kFraction;
  if (octaves > kOne) return 0;
  return kPowers[distance >> (kFraction - kTableBits) & ((1U << kTableBits) - 1)] >> octaves;
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
    taken_[row / 64] |= std::uint64_t{1} << row % 64;
    rows_.push_back(row);
    model.prefetch(row);
  }
  const Query query = model.query(end);
  scores_.resize(num_frequent + rows_.size());
  model.score_first(query, std::span(scores_).first(num_frequent));
  for (std::size_t each = 0; each < rows_.size(); ++each) {
    scores_[num_frequent + each] = model.score(query, rows_[each]);
    taken_[rows_[each] / 64] = 0;
  }
  const std::int32_t most = *std::max_element(scores_.begin(), scores_.end());
  std::uint64_t total = 0;
  for (std::int32_t& score : scores_) {
    const std::uint32_t weight = weight_of(static_cast<std::uint32_t>(most - score));
    score = static_cast<std::int32_t>(weight);
    total += weight;
  }
  best_.clear();
  for (std::uint32_t each = 0; each < scores_.size(); ++each) {
    const auto weight = static_cast<std::uint32_t>(scores_[each]);
    if (weight * kLeastShare <= total) continue;
    best_.push_back({weight, model.token(each < num_frequent ? each : rows_[each - num_frequent])});
  }
  std::sort(best_.begin(), best_.end(), [](const Scored& one, const Scored& other) {
    return one.weight > other.weight || (one.weight == other.weight && one.token < other.token);
  });
  if (best_.size() > kMostProposals) best_.resize(kMostProposals);
  proposals_.clear();
  for (const Scored& each : best_) {
    proposals_.push_back({each.token, static_cast<std::uint32_t>((each.weight * std::uint64_t{kWhole} + total / 2) / total)});
  }
  return proposals_;
}

}  // namespace speculant::neural
