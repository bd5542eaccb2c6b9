// Reliability of each kind of context, learned while drafting from every accepted token.
//
// Back-off weights. From the longest context to the shortest, context k keeps the share 1 - b of the remaining mass and
// passes b on: P(x) = sum over k of (prod of b before k) (1 - b_k) count_k(x) / total_k. This is the interpolated model
// of Jelinek and Mercer (1980). As in their work, b is learned by expectation and maximisation, but online: once the
// true token is known, every context is credited with the probability that the token came from it. Each kind of context
// (source, length, occurrences, distinct successors) has its own b. (Estimating b as the share of tokens that were new
// to a context, as PPM does, drafts about 1.2 % worse.)
//
// Binned calibration. The mixture can't tell that a candidate with support from both the sequence and the corpus is
// better than one with support from a single long context. So a second table counts, for each range of P(x) and set of
// supporting contexts, how often x was right, and moves P(x) towards that rate. Each candidate is adjusted by itself,
// so the candidates of a position may add up to a little more than 1 (0.3 % of positions do).
//
// Paths. The hit rate of drafted paths differs from the product of their tokens' probabilities, for two reasons: tokens
// of one text are right together, and a tree prefers candidates whose probability is overestimated. So a third table
// counts, for ranges of depth and probability, how often drafted paths were right. It adjusts each path's probability
// in the same way, to no more than its parent's. Because it counts only drafted paths, it forgets at every step;
// otherwise it would not notice that a range is worth drafting again. It is not saved: a few hundred steps fill it.
//
// Sums are taken in the order of the reference in the tests, so that results are equal and not merely close. For the
// same reason the build disables contracted multiply-adds.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "contexts.hpp"
#include "draft.hpp"
#include "locks.hpp"

namespace speculant {

namespace mixer {
struct Example;
struct Weights;
}  // namespace mixer

/// Shorter contexts are left out once less than this share is left for them. With 0.1 drafts are as good, in 0.85 to 1
/// of the time; 0.01 is no better (docs/experiments.md, "constants of the mixture").
inline constexpr double kSmallestShare = 0.03;
/// Candidates below this probability are neither calibrated nor drafted: it is the lower end of the lowest bin. 2^-7
/// loses up to 0.2 %, 2^-14 changes nothing (the same section).
inline constexpr double kSmallestCandidate = 0x1p-10;
/// Maximum number of candidates of a position; further ones, from the shortest contexts, are left out. With 64 no
/// figure changes.
inline constexpr std::size_t kMaxCandidates = 256;

struct Candidate {
  Token token;
  // Bit fields of the contexts that support it: the longest of the sequence, of the corpus, of learned text, and
  // others.
  std::uint32_t support;
  double probability;
  double interpolated = 0.0;  // the probability before calibration by bins
  // Per graph: its record below the longest context that holds it, and that context's order; 0 if no context does.
  std::array<std::uint32_t, kMaxGraphs> children = {};
  std::array<std::uint8_t, kMaxGraphs> orders = {};
};

/// A distribution over candidates; reuses its buffers for the next position.
struct Mixture {
  Mixture() { index.fill(-1); }
  std::vector<Candidate> candidates;
  // Hash table from tokens to candidates, -1 for none. Twice as large as kMaxCandidates, so it is at most half full.
  std::array<std::int16_t, 512> index;
  std::vector<std::size_t> used;      // slots of `index` that are not -1
  std::vector<std::int16_t> members;  // candidate of each mixed successor, -1 for none
};

class Calibration {
 public:
  struct BackoffWeight {
    double visits, passed_on;
  };
  struct Bin {
    double visits, expected, hits;
  };

  /// Initial tables: longer contexts are more reliable.
  Calibration();
  Calibration(const Calibration& other)
      : weights(other.weights), bins(other.bins), paths(other.paths), mixer_weights(other.mixer_weights) {}

  /// Kinds of a source, by length, occurrences and distinct successors. Tables are saved, so their order is fixed: the
  /// kinds of the first six sources, then the kinds of the corpus for each further graph, then the kinds of later
  /// sources.
  static constexpr std::size_t kKindsOfSource = 11 * 6 * 3, kKinds = (kNumSources + kMaxGraphs - 1) * kKindsOfSource;
  static constexpr std::size_t kFirstSources = 6;
  static std::size_t kind_of(const MatchedContext& context);
  /// Share that a kind of context leaves to shorter ones. Half a visit on either side keeps it strictly between 0 and
  /// 1. A twentieth instead is within 0.3 % (the same section).
  double backoff(std::size_t kind) const { return (weights[kind].passed_on + 0.5) / (weights[kind].visits + 1.0); }

  /// Mix the contexts of a position, before calibration by bins. `is_inside`: the token before was itself drafted; a
  /// draft that was just right is right more often.
  void interpolate(const MatchedContexts& found, bool is_inside, Mixture& mixture) const;

  /// Move the candidates' probabilities towards the hit rates of their bins.
  void calibrate(Mixture& mixture) const;

  /// Learn from the token that the target generated.
  void learn(const Graphs& graphs, const MatchedContexts& found, const Mixture& mixture, Token token);

  /// Probability of a path of `depth` tokens. `estimate`: the product of its tokens' probabilities, positive.
  double of_path(int depth, double estimate) const;
  /// Learn from a step: `tokens` followed the end for which `draft` was made. Its probabilities are estimates; a draft
  /// without probabilities teaches nothing.
  void learn_paths(const Draft& draft, std::span<const Token> tokens);

  mutable FairLock lock{LockKind::kGraph};  // guards the members below; callers of every function hold it
  std::vector<BackoffWeight> weights;
  std::vector<Bin> bins;
  std::vector<Bin> paths;

  /// Weights of the mixer, which adjusts candidates last (mixer/mixer.hpp); null without a mixer. Set before the first
  /// draft.
  std::shared_ptr<const mixer::Weights> mixer_weights;
  /// Collects training examples for a mixer; null if none are collected.
  std::shared_ptr<std::vector<mixer::Example>> examples;
};

}  // namespace speculant
