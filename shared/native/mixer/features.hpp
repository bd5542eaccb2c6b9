// Features that the mixer reads: numbers about the contexts of a position, and about each candidate.
//
// Contexts are grouped into slots by source and length. Several contexts may share a slot, such as matches of 7 and of
// 9 tokens, or contexts of several graphs. Then the first one that holds a candidate counts, which is the longest.
// Features are base-2 logarithms of counts, scaled to about 1; unknown values are 0. No feature depends on a token's
// id, so weights learned on one text apply to others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calibration.hpp"
#include "contexts.hpp"

namespace speculant::mixer {

/// Orders 1 to 5 of graphs; matches of 1, 2, 3, 4, 6 and 12 tokens in the sequence; skip-grams; matches of 2 and 6
/// tokens in learned text; target top-k after one token and after two; the neural model.
inline constexpr std::size_t kNumSlots = 17;

/// Features of a position: for each slot whether there is a context, its occurrences and its distinct successors; then
/// the features below.
enum Common { kInside = 3 * kNumSlots, kUnclaimed, kCandidates, kTokens, kLongestMatch, kNumCommon };
/// Features of a candidate: for each slot its share and its count; then the features below.
enum Own {
  kFirstShare = kNumCommon,
  kCalibrated = kFirstShare + 2 * kNumSlots,
  kInterpolated,
  kIsFirst,
  kIsSecond,
  kRank,
  kIsOthers,
  kBehindBest,
  kIsModelsBest,
  kIsModelled,
  kModelRow,
  kModelBias,
  kIsInSequence,
  kRecency,
  kIsInGraph,
  kGraphCount,
  kNumFeatures
};

inline constexpr std::size_t kNumOwn = static_cast<std::size_t>(kNumFeatures) - static_cast<std::size_t>(kNumCommon);

/// Maximum number of scored candidates of a position, and the least probability of a path that ends in a scored
/// candidate.
inline constexpr std::size_t kMostScored = 32;
inline constexpr double kLeastScored = 0x1p-9;
/// Least probability of all other tokens together.
inline constexpr double kLeastOthers = 0.003;

struct Value {
  std::uint32_t feature;
  float value;
};

/// The nonzero features of a position.
struct Features {
  std::span<const Value> common;
  std::span<const std::span<const Value>> own;  // of each candidate, and of all others together
  std::span<const float> scores;                // logarithms of their probabilities
};

/// Computes features; reuses its buffers for the next position.
class Observer {
 public:
  /// Compute the features of a position and of its mixed and calibrated candidates. `reach`: the probability of the
  /// path to the position. Returns whether there is a candidate to score.
  bool look(const Sources& sources, const MatchedContexts& found, const Mixture& mixture, bool is_inside, double reach);

  /// The features, valid until the next look().
  Features features() const { return {std::span(common_).first(num_common_), own_, scores_}; }
  /// Indices of the scored candidates, the most probable first.
  std::span<const std::int16_t> scored() const { return scored_; }
  /// Place of a candidate in scored(), -1 if it is not scored.
  int place_of(std::size_t candidate) const { return places_[candidate + 1]; }
  /// Place of a token in scored(), or the size of scored().
  std::size_t place_of(const Mixture& mixture, Token token) const;

 private:
  void choose(const Mixture& mixture, double reach);
  void add_contexts(const MatchedContexts& found, const Mixture& mixture);
  void add_candidate(const Sources& sources, const Candidate& candidate, std::size_t place);
  void add(std::size_t feature, float value) { common_[num_common_++] = {static_cast<std::uint32_t>(feature), value}; }
  void add(std::size_t place, std::size_t feature, float value) {
    values_[place][num_values_[place]++] = {static_cast<std::uint32_t>(feature), value};
  }

  // Every feature occurs at most once per position and per candidate.
  std::array<Value, kNumCommon> common_;
  std::size_t num_common_ = 0;
  std::array<std::array<Value, kNumOwn>, kMostScored + 1> values_;
  std::array<std::uint8_t, kMostScored + 1> num_values_;
  std::vector<std::span<const Value>> own_;
  std::vector<float> scores_;
  double total_ = 0.0;  // of the probabilities of all candidates
  std::vector<std::int16_t> scored_;
  std::array<std::int8_t, kMaxCandidates + 1> places_;  // the first is for index -1, which is no candidate
};

}  // namespace speculant::mixer
