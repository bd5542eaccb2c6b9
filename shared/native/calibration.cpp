#include "calibration.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace speculant {
namespace {

// Figures below without a reference are from docs/experiments.md, "constants of the mixture", in tokens per step.

// Sizes of the tables. A change of a size, or of a bound below, makes saved tables useless.
constexpr std::size_t kLengths = 11, kOccurrences = 6, kVarieties = 3;  // classes of length_class and kind_of
constexpr std::size_t kProbabilities = 20;  // half octaves from 1 down to kSmallestCandidate
constexpr std::size_t kSupports = 1 << 14;  // the fields of support_by, and kInside
// Set if the token before was itself drafted. Without it figures are within 0.3 %.
constexpr std::uint32_t kInside = 1 << 11;
// The probability of a token that no context holds. 1e-3 and 1e-6 are within 0.2 %.
constexpr double kUnseen = 1e-4;
// Decay factors per visit: the last 2,000 visits decide about a weight, the last 1,000 about a bin. 0.999 and 0.9998
// are as good for weights (docs/experiments.md, "How weights are learned"). 0.99 and 0.9999 are within 0.6 % for bins.
constexpr double kWeightMemory = 0.9995, kBinMemory = 0.999;
// Visits that an initial weight counts for. 4 and 8 drafted 0.1 and 0.2 % worse, which is noise (the same section).
constexpr double kWeightPrior = 2.0;
// Pseudo-counts of hits and of misses in a bin, all as expected (docs/experiments.md, "Agreement"). 2 and 10 are within
// 0.6 %.
constexpr double kBinPrior = 5.0;
// Initial back-off weights. For the sequence, the corpus and learned text they fall with length, from kFirstShare by
// the factor kShareRatio per token. For neural contexts they fall with the class in the same way. Skip-gram and target
// top-k have one weight each. These are guesses: 0.5 for all lengths, or for one of the two, is within 0.2 %.
constexpr double kFirstShare = 0.85, kShareRatio = 0.75, kLeastShare = 0.08;
constexpr double kSkipGramShare = 0.8, kTargetRowsShare = 0.7;
// Contexts stop learning from a token once the probability that it came from them or shorter ones is below this. 0.1
// and 0 are within 0.2 %.
constexpr double kLeastReached = 0.01;
// Classes of path depth: 1, 2, 3 to 4, more. kPathMemory: the decay factor per draft.
constexpr std::size_t kDepths = 4;
constexpr double kPathMemory = 0.998;
// Pseudo-counts of hits and of misses of paths, all as expected. With 5, drafts promise 1 to 3 % more.
constexpr double kPathPrior = 2.0;
// Least share of its estimate that a path keeps, so that it is drafted, and learned from, again.
constexpr double kLeastOfEstimate = 0.25;
// Contexts that learn() has space for; contexts.cpp collects fewer.
constexpr std::size_t kLearnedContexts = 128;

/// Number of bounds that a value exceeds.
template <std::size_t size>
std::size_t class_of(std::int64_t value, const std::int64_t (&bounds)[size]) {
  return static_cast<std::size_t>(std::count_if(bounds, bounds + size, [=](auto bound) { return value > bound; }));
}

// The bounds of all classes below are guesses; others are within 0.3 %.

/// Each order of a graph is a class. The length of a neural context already is one.
std::size_t length_class(Source source, std::int64_t length) {
  if (source == Source::kCorpus || source == Source::kNeural || length <= 5)
    return static_cast<std::size_t>(std::min<std::int64_t>(length, 10));
  return 6 + class_of(length, {7, 11, 19});
}

/// The mark of a context on the candidates that it supports. In each field the first mark counts, which is the longest
/// context's. From the lowest bit up: three bits for the sequence, four for the corpus, two for learned text, two for
/// the other kinds. Above kInside are two bits for the neural model; there `value` marks the weakest support.
struct Support {
  std::uint32_t field, value;
};

Support support_by(Source source, std::int64_t length) {
  std::uint32_t field = 0, value = 0;
  switch (source) {
    case Source::kSession:
      field = 7;
      value =
          static_cast<std::uint32_t>(length <= 2 ? length : 3 + static_cast<std::int64_t>(class_of(length, {5, 11})));
      break;
    case Source::kCorpus:
      field = 15 << 3;
      value = static_cast<std::uint32_t>(std::min<std::int64_t>(length, 10)) << 3;
      break;
    case Source::kLearned:
      field = 3 << 7;
      value = (length < 6 ? 1u : 2u) << 7;
      break;
    case Source::kNeural:
      field = 3 << 12;
      value = 1 << 12;
      break;
    case Source::kSkipGram:
    case Source::kTargetRows:
      field = 3 << 9;
      value = (source == Source::kSkipGram ? 1u : length == 1 ? 2u : 3u) << 9;
      break;
  }
  return {field, value};
}

/// Class of a probability, in half octaves.
std::size_t half_octave(double probability) {
  // Split a normal number as std::frexp does, without a call. 1e-6 is below the last bin, and keeps 0 normal.
  const auto bits = std::bit_cast<std::uint64_t>(std::max(probability, 1e-6));
  const int exponent = static_cast<int>(bits >> 52) - 1022;
  const auto mantissa = std::bit_cast<double>((bits & 0x000F'FFFF'FFFF'FFFF) | 0x3FE0'0000'0000'0000);
  const int half = -2 * exponent + (mantissa < 0.7071 ? 1 : 0);
  return static_cast<std::size_t>(std::clamp(half, 0, static_cast<int>(kProbabilities) - 1));
}

std::size_t bin_of(const Candidate& candidate) {
  return half_octave(candidate.probability) * kSupports + candidate.support;
}

std::size_t path_of(int depth, double estimate) {
  const int depths = depth <= 2 ? depth - 1 : depth <= 4 ? 2 : 3;
  return static_cast<std::size_t>(depths) * kProbabilities + half_octave(estimate);
}

/// Move a probability towards the hit rate of its bin. Scale the rarer outcome, so that 0.99 and 0.9 stay apart
/// although they share a bin.
double moved(const Calibration::Bin& bin, double prior, double probability) {
  const auto [visits, expected, hits] = bin;
  if (probability <= 0.5) return probability * (hits + prior) / (expected + prior);
  return 1.0 - (1.0 - probability) * (visits - hits + prior) / (visits - expected + prior);
}

/// Number of times that a token followed a context.
std::int64_t count_in(const Graphs& graphs, const MatchedContexts& found, const MatchedContext& context, Token token) {
  const auto successors = found.of(context);
  for (const Successor& each : successors) {
    if (each.token == token) return each.count;
  }
  if (context.source != Source::kCorpus || std::ssize(successors) >= context.distinct) return 0;
  const Trie& trie = graphs[context.graph];
  const Level& level = trie.level(context.length + 1);
  const std::int64_t child = trie.find_child(level, trie.children({context.length, context.node}), token);
  return child < 0 ? 0 : std::clamp<std::int64_t>(level.count(child), 0, context.total);  // a file may be damaged
}

}  // namespace

static_assert(kLengths * kOccurrences * kVarieties == Calibration::kKindsOfSource);

Calibration::Calibration()
    : bins(kProbabilities * kSupports, Bin{0, 0, 0}), paths(kDepths * kProbabilities, Bin{0, 0, 0}) {
  for (std::size_t place = 0; place < kKinds / kKindsOfSource; ++place) {
    for (std::size_t length = 0; length < kLengths; ++length) {
      const double steps = std::clamp<double>(static_cast<double>(length), 1, 5) - 1;  // of the order of a usual graph
      double share = std::max(kLeastShare, kFirstShare * std::pow(kShareRatio, steps));
      if (place == static_cast<std::size_t>(Source::kSkipGram)) share = kSkipGramShare;
      if (place == static_cast<std::size_t>(Source::kTargetRows)) share = kTargetRowsShare;
      weights.insert(weights.end(), kOccurrences * kVarieties, {kWeightPrior, kWeightPrior * share});
    }
  }
}

std::size_t Calibration::kind_of(const MatchedContext& context) {
  const std::size_t occurrences = class_of(context.occurrences, {1, 2, 4, 12, 50});
  const std::size_t variety = class_of(context.distinct, {1, 3});
  const std::size_t length = length_class(context.source, context.length);
  auto place = static_cast<std::size_t>(context.source);
  if (context.graph > 0) {
    place = kFirstSources + context.graph - 1;
  } else if (place >= kFirstSources) {
    place += kMaxGraphs - 1;
  }
  return ((place * kLengths + length) * kOccurrences + occurrences) * kVarieties + variety;
}

void Calibration::interpolate(const MatchedContexts& found, bool is_inside, Mixture& mixture) const {
  auto& [candidates, index, used, members] = mixture;
  candidates.clear();
  members.clear();
  for (std::size_t slot : used) index[slot] = -1;
  used.clear();
  double left = 1.0;
  for (const MatchedContext& context : found.contexts) {
    members.resize(context.last, -1);
    const double unit = left * (1.0 - context.backoff) / static_cast<double>(context.total);
    const auto [field, value] = support_by(context.source, context.length);
    for (std::size_t place = context.first; place < context.last; ++place) {
      const Successor& successor = found.successors[place];
      std::size_t slot = (static_cast<std::uint64_t>(successor.token) * kHashFactor >> 40) % index.size();
      while (index[slot] >= 0 && candidates[static_cast<std::size_t>(index[slot])].token != successor.token) {
        slot = (slot + 1) % index.size();
      }
      if (index[slot] < 0) {
        if (candidates.size() == kMaxCandidates) continue;
        index[slot] = static_cast<std::int16_t>(candidates.size());
        used.push_back(slot);
        candidates.push_back({.token = successor.token, .support = 0, .probability = 0.0});
      }
      members[place] = index[slot];
      Candidate& candidate = candidates[static_cast<std::size_t>(index[slot])];
      candidate.probability += unit * static_cast<double>(successor.count);
      if (!(candidate.support & field)) {
        candidate.support |= context.source == Source::kNeural ? neural::support_class(successor.count) * value : value;
      }
      if (successor.child != Successor::kNoChild && candidate.orders[context.graph] == 0) {
        candidate.children[context.graph] = successor.child;
        candidate.orders[context.graph] = static_cast<std::uint8_t>(context.length);
      }
    }
    left *= context.backoff;
    if (left < kSmallestShare) break;
  }
  for (Candidate& candidate : candidates) {
    if (is_inside) candidate.support |= kInside;
    candidate.probability = std::min(candidate.probability, 1.0);  // in a damaged file a context may hold a token twice
    __builtin_prefetch(&bins[bin_of(candidate)]);                  // the table is larger than the nearer caches
  }
}

void Calibration::calibrate(Mixture& mixture) const {
  for (Candidate& candidate : mixture.candidates) {
    candidate.interpolated = candidate.probability;
    if (candidate.probability < kSmallestCandidate) continue;
    candidate.probability = moved(bins[bin_of(candidate)], kBinPrior, candidate.probability);
  }
}

double Calibration::of_path(int depth, double estimate) const {
  return std::max(moved(paths[path_of(depth, estimate)], kPathPrior, estimate), kLeastOfEstimate * estimate);
}

void Calibration::learn_paths(const Draft& draft, std::span<const Token> tokens) {
  for (Bin& bin : paths) bin.visits *= kPathMemory, bin.expected *= kPathMemory, bin.hits *= kPathMemory;
  // Of each node, the root first: its depth, and the number of tokens of its path that were right.
  std::vector<std::pair<int, int>> nodes{{0, 0}};
  for (std::size_t node = 0; node < draft.probabilities.size(); ++node) {
    const auto [parent_depth, parent_right] = nodes[static_cast<std::size_t>(draft.parents[node])];
    const bool is_open = parent_right == parent_depth;
    const auto place = static_cast<std::size_t>(parent_depth);
    const bool is_right = is_open && place < tokens.size() && tokens[place] == draft.tokens[node];
    nodes.emplace_back(parent_depth + 1, parent_right + is_right);
    if (is_open && place >= tokens.size()) continue;  // unknown: the tokens end before it
    const double estimate = draft.probabilities[node];
    Bin& bin = paths[path_of(parent_depth + 1, estimate)];
    bin.visits += 1.0, bin.expected += estimate, bin.hits += is_right ? 1.0 : 0.0;
  }
}

void Calibration::learn(const Graphs& graphs, const MatchedContexts& found, const Mixture& mixture, Token token) {
  for (const Candidate& candidate : mixture.candidates) {
    if (candidate.probability < kSmallestCandidate) continue;
    Bin& bin = bins[bin_of(candidate)];
    bin.visits = bin.visits * kBinMemory + 1.0;
    bin.expected = bin.expected * kBinMemory + candidate.probability;
    bin.hits = bin.hits * kBinMemory + (candidate.token == token ? 1.0 : 0.0);
  }
  // Each context's share of the probability that it and all shorter contexts give the token.
  const auto& contexts = found.contexts;
  std::array<double, kLearnedContexts> came_from_here;
  double below = kUnseen;
  for (std::size_t index = contexts.size(); index-- > 0;) {
    const MatchedContext& context = contexts[index];
    const auto count = static_cast<double>(count_in(graphs, found, context, token));
    const double kept = (1.0 - context.backoff) * (count / static_cast<double>(context.total));
    below = kept + context.backoff * below;
    came_from_here[index] = kept / below;
  }
  double reached = 1.0;
  for (std::size_t index = 0; index < contexts.size() && reached >= kLeastReached; ++index) {
    BackoffWeight& weight = weights[contexts[index].kind];
    const double memory = 1.0 - (1.0 - kWeightMemory) * reached;
    weight.visits = weight.visits * memory + reached;
    weight.passed_on = weight.passed_on * memory + reached * (1.0 - came_from_here[index]);
    reached *= 1.0 - came_from_here[index];
  }
}

}  // namespace speculant
