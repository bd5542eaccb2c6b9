// What may follow a context of the graph, as a distribution q; and drafts from the graph alone: chains of the most
// probable tokens, and chains and trees that are drawn from q.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft.hpp"
#include "trie.hpp"

namespace speculant {

/// What q is made of.
struct DistributionOptions {
  std::int64_t max_candidates = 0;  // most tokens that it keeps, the most probable, of equals the lowest ids; 0: all
  double temperature = 1.0;         // raises it to the power of 1 / temperature, before it is capped
};

/// What the probabilities of a range of records are proportional to. Keeps its memory from one context to the next.
class Masses {
 public:
  /// Take what followed a context of order 1 to N.
  void read(const Trie& trie, Context context, const DistributionOptions& options);
  /// Most entries that the distribution can have.
  std::size_t max_entries(const DistributionOptions& options) const;
  /// Append the distribution, capped; nothing where the masses make none.
  Distributions::Span append_to(Distributions& out, const DistributionOptions& options);

 private:
  void temper(double temperature);

  const Level* level_ = nullptr;
  std::int64_t low_ = 0;  // record of the first
  std::vector<double> values_;
  double total_ = 0.0;
  std::vector<std::size_t> largest_;
};

/// One sequence of a batch, while it is drafted for.
struct GraphDraft {
  const Trie* trie;            // what it drafts from
  Context context = {};        // at its end; a chain moves it on
  int budget = 0;              // most nodes
  std::uint64_t seed = 0;      // of the draws
  std::uint64_t position = 0;  // of the first token drafted
  Draft draft = {};
};

/// What bounds a tree that is drawn.
struct DrawnTreeShape {
  bool is_independent;  // every child from all of q, rather than from what older siblings have left
  int max_branches, max_depth;
};

/// The context of the same order after a token that followed `context`, or the longest known one.
Context context_after(const Trie& trie, Context context, Token token);

/// Draft the most probable successor again and again, of equals the lowest id, for every sequence.
///
/// The longest known context decides, and its order is kept while the window slides.
void draft_greedy(std::span<GraphDraft> sequences);

/// Draw a chain for every sequence, each token from the distribution q of its context; if it is coupled, by the noise
/// that verifiers share.
///
/// All take a step before any takes the next one, so that the memory which one needs is on its way while the others are
/// served. `max_entries`: most entries of all distributions together. A chain ends before one that may not fit, so
/// before its token is drawn, or the tokens that are there would not be draws any more. 0 keeps no distribution.
void draw_chains(std::span<GraphDraft> sequences, const DistributionOptions& options, bool is_coupled,
                 std::size_t max_entries, Distributions& out);

/// Draw a tree for every sequence; drawn_trees.cpp says why it is exact. `max_entries`: most entries of the
/// distributions of all nodes together, siblings counted apart.
void draw_trees(std::span<GraphDraft> sequences, const DistributionOptions& options, const DrawnTreeShape& shape,
                std::size_t max_entries, Distributions& out);

}  // namespace speculant
