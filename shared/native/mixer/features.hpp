// What the mixer sees of a position: numbers about its contexts, and about each candidate.
//
// Contexts are told apart by slots, of their source and length. Where several fall into one slot, such as matches of 7
// and of 9 tokens, or those of several graphs, the first one that holds a candidate counts, the longest. Features are
// logarithms of counts to the base of 2, scaled to be about as large as 1; what is not known is 0. No feature knows a
// token's id, so what was learned of one text holds of others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "calibration.hpp"
#include "contexts.hpp"

namespace speculant::mixer {

/// Orders 1 to 5 of graphs; matches of 1, 2, 3, 4, 6 and 12 tokens in the sequence; gaps; matches of 2 and 6 tokens in
/// learned text; rows of the target after one token and two; the neural model.
inline constexpr std::size_t kNumSlots = 17;

/// Of a position: for each slot whether there is a context, its occurrences and its distinct successors; then these.
enum Common { kInside = 3 * kNumSlots, kUnclaimed, kCandidates, kTokens, kLongestMatch, kNumCommon };
/// Of a candidate: for each slot its share and its count; then these.
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

/// Most candidates of a position that are scored, and the least probability of a path that one may end.
inline constexpr std::size_t kMostScored = 32;
inline constexpr double kLeastScored = 0x1p-9;
/// The least probability of all others together.
inline constexpr double kLeastOthers = 0.003;

struct Value {
  std::uint32_t feature;
  float value;
};

/// The features of a position that are not 0.
struct Features {
  std::span<const Value> common;
  std::span<const std::span<const Value>> own;  // of each candidate, and of all others
  std::span<const float> scores;                // logarithms of their probabilities
};

/// Finds features; keeps its memory from one position to the next.
class Observer {
 public:
  /// Look at a position and the candidates that were mixed and calibrated there; `reach`: the probability of the path
  /// to it. Returns whether there is anything to score.
  bool look(const Sources& sources, const MatchedContexts& found, const Mixture& mixture, bool is_inside, double reach);

  /// Until the next look.
  Features features() const { return {std::span(common_).first(num_common_), own_, scores_}; }
  /// Which candidates are scored, the most probable first.
  std::span<const std::int16_t> scored() const { return scored_; }
  /// Which of them a candidate is, -1 for none.
  int place_of(std::size_t candidate) const { return places_[candidate + 1]; }
  /// Which of them a token is, or how many they are.
  std::size_t place_of(const Mixture& mixture, Token token) const;

 private:
  void choose(const Mixture& mixture, double reach);
  void add_contexts(const MatchedContexts& found, const Mixture& mixture);
  void add_candidate(const Sources& sources, const Candidate& candidate, std::size_t place);
  void add(std::size_t feature, float value) { common_[num_common_++] = {static_cast<std::uint32_t>(feature), value}; }
  void add(std::size_t place, std::size_t feature, float value) {
    values_[place][num_values_[place]++] = {static_cast<std::uint32_t>(feature), value};
  }

  // Every feature comes once at most, of a position and of each candidate.
  std::array<Value, kNumCommon> common_;
  std::size_t num_common_ = 0;
  std::array<std::array<Value, kNumOwn>, kMostScored + 1> values_;
  std::array<std::uint8_t, kMostScored + 1> num_values_;
  std::vector<std::span<const Value>> own_;
  std::vector<float> scores_;
  double total_ = 0.0;  // of the probabilities of all candidates
  std::vector<std::int16_t> scored_;
  std::array<std::int8_t, kMaxCandidates + 1> places_;  // first of -1, which is no candidate
};

}  // namespace speculant::mixer
