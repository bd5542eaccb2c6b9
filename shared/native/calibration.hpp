// How reliable each kind of context is: learned while drafting, from every token that was accepted.
//
// Back-off weights. Going from the longest context to shorter ones, context k keeps the share 1 - b of what is left and
// passes b on: P(x) = sum over k of (prod of b before k) (1 - b_k) count_k(x) / total_k. That is Jelinek and Mercer's
// interpolated model (1980), and b is learned as theirs is, by expectation and maximisation, here online: once the true
// token is known, every context is credited with the probability that the token came from it. There is one b for each
// kind of context (source, length, occurrences, distinct successors). (Estimating b as the share of tokens that were
// new to a context, as PPM does, drafts about 1.2 % worse.)
//
// Binned calibration. The mixture does not know that a candidate which the sequence and the corpus both support is
// better than one that a single long context supports. So a second table counts, for each range of P(x) and set of
// contexts that support x, how often x was right, and moves P(x) towards that rate. Each candidate is moved by itself:
// those of one position may add up to a little more than 1 (0.3 % of positions do).
//
// Paths. Of the paths that are drafted more or fewer are right than their probabilities, multiplied, say: tokens of one
// text are right together, and a tree takes the candidates that are judged too well first. So a third table counts, for
// ranges of depth and probability, how often drafted paths were right, and moves their probabilities the same way, each
// by itself, to no more than that of the path before its last token. It
// counts what was drafted only, so it forgets with every step, or it would not notice that a range is worth drafting
// again. It is not saved: a few hundred steps fill it.
//
// Sums are taken in the order of the reference in the tests, so that results are equal and not merely close; the build
// switches contracted multiply-adds off for that.
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
/// Less probable candidates are neither calibrated nor drafted: it is the lower end of the least probable bin. 2^-7
/// loses up to 0.2 %, 2^-14 changes nothing (the same place).
inline constexpr double kSmallestCandidate = 0x1p-10;
/// Candidates of a position; more are left out, those of the shortest contexts. With 64 no figure changes.
inline constexpr std::size_t kMaxCandidates = 256;

struct Candidate {
  Token token;
  // The contexts that support it: the longest of the sequence, of the corpus, of what was learned, and others.
  std::uint32_t support;
  double probability;
  double interpolated = 0.0;  // the same before the bins
  // In each graph its record below the longest context that holds it, and that context's order; 0 if none does.
  std::array<std::uint32_t, kMaxGraphs> children = {};
  std::array<std::uint8_t, kMaxGraphs> orders = {};
};

/// A distribution over candidates; keeps its memory from one position to the next.
struct Mixture {
  Mixture() { index.fill(-1); }
  std::vector<Candidate> candidates;
  // Hash table from tokens to candidates, -1 for none. Twice as large as kMaxCandidates, so it is half full at most.
  std::array<std::int16_t, 512> index;
  std::vector<std::size_t> used;      // slots of it that are not -1
  std::vector<std::int16_t> members;  // of the successors that were mixed their candidates, -1 for none
};

class Calibration {
 public:
  struct BackoffWeight {
    double visits, passed_on;
  };
  struct Bin {
    double visits, expected, hits;
  };

  /// Tables that know nothing yet: longer contexts are more reliable.
  Calibration();
  Calibration(const Calibration& other)
      : weights(other.weights), bins(other.bins), paths(other.paths), mixer_weights(other.mixer_weights) {}

  /// Kinds of a source: by length, occurrences and distinct successors. Tables are saved, so nothing may move: first
  /// come the kinds of the first six sources, then those of the corpus for each further graph, then those of later
  /// sources.
  static constexpr std::size_t kKindsOfSource = 11 * 6 * 3, kKinds = (kNumSources + kMaxGraphs - 1) * kKindsOfSource;
  static constexpr std::size_t kFirstSources = 6;
  static std::size_t kind_of(const MatchedContext& context);
  /// The share that a kind of context leaves to shorter ones. Half a visit on either side keeps it strictly between 0
  /// and 1. A twentieth instead is within 0.3 % (the same place).
  double backoff(std::size_t kind) const { return (weights[kind].passed_on + 0.5) / (weights[kind].visits + 1.0); }

  /// Mix the contexts of a position, before the bins are looked at. `is_inside`: the token before was drafted itself;
  /// a draft that has just been right is right more often.
  void interpolate(const MatchedContexts& found, bool is_inside, Mixture& mixture) const;

  /// Move the candidates towards the rates of their bins.
  void calibrate(Mixture& mixture) const;

  /// Learn from the token that followed in truth.
  void learn(const Graphs& graphs, const MatchedContexts& found, const Mixture& mixture, Token token);

  /// The probability of a path of so many tokens, where `estimate` is the product of those of its tokens, positive.
  double of_path(int depth, double estimate) const;
  /// Learn from a step: the tokens that came after the end that `draft` was made for. Its probabilities are estimates;
  /// a draft without any teaches nothing.
  void learn_paths(const Draft& draft, std::span<const Token> tokens);

  mutable FairLock lock{LockKind::kGraph};  // for all that is below; held by the callers of all functions
  std::vector<BackoffWeight> weights;
  std::vector<Bin> bins;
  std::vector<Bin> paths;

  /// What has the last word on candidates (mixer/mixer.hpp), if there is anything; set before the first draft.
  std::shared_ptr<const mixer::Weights> mixer_weights;
  /// Where positions are kept that a mixer is trained on, if they are.
  std::shared_ptr<std::vector<mixer::Example>> examples;
};

}  // namespace speculant
