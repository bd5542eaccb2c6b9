// The distribution q over the successors of a context, and drafts from the graph alone: chains of the most probable
// tokens, and chains and trees drawn from q.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft.hpp"
#include "trie.hpp"

namespace speculant {

/// Options of q.
struct DistributionOptions {
  std::int64_t max_candidates = 0;  // maximum number of tokens kept, the most probable, ties by lowest id; 0: all
  double temperature = 1.0;         // q is raised to the power of 1 / temperature, and then capped
};

/// Unnormalised probabilities of a range of records. Reuses its memory for the next context.
class Weights {
 public:
  /// Take the successors of a context of order 1 to N.
  void read(const Trie& trie, Context context, const DistributionOptions& options);
  /// Maximum number of entries that the distribution can have.
  std::size_t max_entries(const DistributionOptions& options) const;
  /// Append the capped distribution; nothing if the weights are invalid.
  Distributions::Span append_to(Distributions& out, const DistributionOptions& options);

 private:
  void temper(double temperature);

  const Level* level_ = nullptr;
  std::int64_t low_ = 0;  // record of the first
  std::vector<double> values_;
  double total_ = 0.0;
  std::vector<std::size_t> largest_;
};

/// One sequence of a batch during drafting.
struct GraphDraft {
  const Trie* trie;            // the graph
  Context context = {};        // at its end; a chain advances it
  int budget = 0;              // maximum number of nodes
  std::uint64_t seed = 0;      // of the draws
  std::uint64_t position = 0;  // of the first token drafted
  Draft draft = {};
};

/// The limits of a drawn tree.
struct DrawnTreeShape {
  bool is_independent;  // draws every child from all of q, instead of without replacement
  int max_branches, max_depth;
};

/// The context of the same order after a token that followed `context`, or the longest known one.
Context context_after(const Trie& trie, Context context, Token token);

/// Draft chains of the most probable successors, ties by lowest id, for every sequence.
///
/// They use the longest known context, and its order stays the same while the window slides.
void draft_greedy(std::span<GraphDraft> sequences);

/// Draw a chain for every sequence, each token from the distribution q of its context. If coupled, the draw uses the
/// noise that verifiers share.
///
/// All sequences advance by one token before any advances by another, so that memory for one is prefetched while the
/// others are processed. `max_entries`: most entries of all distributions together. A chain ends before a distribution
/// that may not fit, and before its token is drawn; otherwise the remaining tokens would not be draws from q. 0 keeps
/// no distribution.
void draw_chains(std::span<GraphDraft> sequences, const DistributionOptions& options, bool is_coupled,
                 std::size_t max_entries, Distributions& out);

/// Draw a tree for every sequence; drawn_trees.cpp explains why it is exact. `max_entries`: most entries of the
/// distributions of all nodes together, counted per sibling.
void draw_trees(std::span<GraphDraft> sequences, const DistributionOptions& options, const DrawnTreeShape& shape,
                std::size_t max_entries, Distributions& out);

}  // namespace speculant
