// The evidence of every source for the next token: successor counts of the matching contexts, longest first.
//
// Sources:
//   - corpus: the matching orders of each graph.
//   - session: positions of the sequence itself that end in the same tokens.
//   - skip-gram: positions where the tokens before the last one match and the last one differs, so that a copy
//     continues after a changed token.
//   - learned: positions in the accepted text of earlier sequences.
//   - target top-k: the target's own top tokens after the last two tokens, and after the last one.
//   - neural: the predictions of the graphs' neural models from the last 80 tokens. They come before the short
//     contexts, which would otherwise take their share.
// A context that occurs exactly where the next longer one of its source does adds nothing and is left out.
// calibration.hpp mixes the contexts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "graphs.hpp"
#include "history.hpp"
#include "neural/proposals.hpp"
#include "target_rows.hpp"

namespace speculant {

class Calibration;

enum class Source : std::uint8_t { kSession, kCorpus, kSkipGram, kLearned, kTargetRows, kNeural };
inline constexpr std::size_t kNumSources = 6;

/// Maximum number of matches per chain, the newest ones: in the sequence itself, and in learned text, where a match
/// costs a cache miss. As good as 64, in 0.87 to 0.96 of the time (docs/experiments.md, "memory reads of a tree").
inline constexpr int kMaxMatches = 24, kMaxLearnedMatches = 16;
/// Maximum number of successors that are read of a graph's context: the most frequent ones. As good as an even sample
/// of 64 of its occurrences (docs/experiments.md, "from a sketch"). 8 lose up to 0.2 %; 32 gain up to 0.4 % and take up
/// to a sixth longer (the same page, "constants of the mixture").
inline constexpr std::size_t kTopSuccessors = 16;

struct Successor {
  static constexpr std::uint32_t kNoChild = 0xFFFFFFFF;  // no record: a level has fewer than 2^32 - 1

  Token token;
  std::uint32_t count;
  std::uint32_t child = kNoChild;  // corpus: its record, one level below the context's
};

/// One context of one source.
struct MatchedContext {
  Source source;
  std::int64_t length;              // tokens that match; neural: the class of its best probability
  std::int64_t total;               // sum of all its counts
  std::int64_t occurrences;         // number of times it was seen
  std::int64_t distinct = 0;        // number of different tokens that followed it
  std::int64_t node = 0;            // corpus: its record
  std::uint8_t graph = 0;           // corpus: which one
  std::size_t first = 0, last = 0;  // its successors in MatchedContexts::successors, the most frequent ones at least
  std::size_t kind = 0;             // its row of the back-off weights
  double backoff = 0.0;             // the share that it leaves to shorter contexts
};

/// The contexts of one position, longest first.
struct MatchedContexts {
  std::vector<MatchedContext> contexts;
  std::vector<Successor> successors;

  std::span<const Successor> of(const MatchedContext& context) const {
    return std::span(successors).subspan(context.first, context.last - context.first);
  }
  std::size_t first_open() const { return contexts.empty() ? 0 : contexts.back().last; }
  void clear() { contexts.clear(), successors.clear(); }
};

/// Cache of the most frequent successors of graph contexts with more than kTopSuccessors of them. It is
/// set-associative; in a full set the entry that was filled longest ago is overwritten.
class SuccessorCache {
 public:
  /// Allow `num_records` records to be read until the next call.
  void allow(std::int64_t num_records) { num_allowed_ = num_records; }
  /// Return the most frequent successors; empty if more records would have to be read than are allowed.
  std::span<const Successor> top(const Graphs& graphs, std::size_t graph, Context context, Range children);
  /// Number of records read.
  std::int64_t num_read() const { return num_read_; }

 private:
  // 8,192 cached contexts with 16 successors of 12 bytes each: 1.6 MB per tree drafter. Four times as many sets change
  // nothing (docs/experiments.md, "memory reads of a tree"). The keys of a set fill one cache line.
  static constexpr std::size_t kSets = 1 << 10, kPlaces = 8;

  std::int64_t num_allowed_ = 0, num_read_ = 0;
  struct alignas(64) Set {  // read at once
    Set() { keys.fill(-1); }
    std::array<std::int64_t, kPlaces> keys;
  };
  std::vector<Set> sets_ = std::vector<Set>(kSets);
  std::vector<std::uint8_t> oldest_ = std::vector<std::uint8_t>(kSets);  // per set, the next place to fill
  struct Top {
    std::uint64_t graph = 0;  // id of the graph
    std::array<Successor, kTopSuccessors> successors;
  };
  std::vector<Top> tops_{kSets * kPlaces};
};

/// The sources of one sequence, as they were when the sequence had `session_size` tokens.
struct Sources {
  const Graphs& graphs;
  const SessionHistory& session;
  std::int64_t session_size;
  const SessionHistory& learned;
  const TargetTopKOverlay& rows;
  std::array<bool, kNumSources> enabled;

  bool has(Source source) const { return enabled[static_cast<std::size_t>(source)]; }
  bool has_graph(std::size_t graph) const { return has(graphs.is_learned(graph) ? Source::kLearned : Source::kCorpus); }
};

/// Positions of a history that end in the same tokens as a context. They are found chain by chain, and added by match
/// length.
class SuffixMatches {
 public:
  /// `max_matches`: per chain.
  explicit SuffixMatches(int max_matches) : max_matches_(max_matches) {}

  /// Search only positions below `size` of the history.
  void begin(const SessionHistory& history, std::int64_t size, bool is_enabled);
  /// Find the matches of the next chain, unless all are shorter than `longest`. Matches that longer chains have found
  /// are not found again. Returns whether a chain was searched.
  bool find_below(std::int64_t longest, const Token* end);
  /// Length of the longest match that was not added yet, 0 if there is none.
  std::int64_t length() const { return next_ < matches_.size() ? matches_[next_].length : 0; }
  /// Count the successors of all matches of that length or longer; return the number of matches.
  std::int64_t add_next(std::vector<Successor>& successors);

 private:
  struct Match {
    std::int64_t position, length;
  };
  std::int64_t shortest_found() const { return chain_ > 0 ? history_->chain_length(chain_ - 1) : kMaxMatch + 1; }

  int max_matches_;
  const SessionHistory* history_ = nullptr;
  std::int64_t size_ = 0;
  std::size_t chain_ = 0;
  std::vector<Match> matches_;
  std::size_t next_ = 0;
  std::vector<Successor> counted_;
};

/// Collects contexts; reuses its buffers for the next position.
class ContextCollector {
 public:
  /// Collect the contexts of the tokens before `end`, until the share left to shorter contexts is too small to matter.
  /// At least kLookBack tokens precede `end`. `contexts` are the longest ones that the graphs contain. Neural models
  /// are the slowest source, so the first runs only if at least `least_share` is left to it, further ones if more is.
  const MatchedContexts& collect(const Sources& sources, const Calibration& calibration, const Token* end,
                                 Contexts contexts, double least_share = 0.0);

  /// Most frequent successors of contexts. An unchecked graph may have any number of contexts with millions of
  /// successors; contexts beyond the allowance are left out.
  SuccessorCache successors;

 private:
  void close(const Calibration& calibration, MatchedContext context);
  std::int64_t add_children(const Sources& sources, const Calibration& calibration, std::size_t graph, Context context,
                            std::int64_t total_before);
  std::span<const Successor> top_children(const Graphs& graphs, std::size_t graph, Context context);
  void add_proposals(const Sources& sources, const Calibration& calibration, const Token* end, std::size_t graph,
                     Context context);
  void add_skip_gram(const Sources& sources, const Calibration& calibration, const Token* end);
  void add_top_k(const TargetTopKOverlay& rows, const Calibration& calibration, const Token* end, int length);

  MatchedContexts found_;
  double left_ = 1.0;  // share left to shorter contexts
  SuffixMatches session_{kMaxMatches}, learned_{kMaxLearnedMatches};
  std::array<Successor, kTopSuccessors> top_;
  std::vector<Token> known_;
  neural::Proposer proposer_;
};

}  // namespace speculant
