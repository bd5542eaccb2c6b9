// Drafts from the graph alone: chains of the most probable tokens, and chains and trees that are drawn from q.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "distribution.hpp"
#include "trie.hpp"

namespace speculant {

/// One sequence of a batch, and what is drawn for it.
struct GraphDraft {
  Context context = {};        // at its end
  int budget = 0;              // most nodes
  std::uint64_t seed = 0;      // of the draws
  std::uint64_t position = 0;  // of the first token drafted
  std::vector<Token> tokens = {};
  std::vector<std::int32_t> parents = {};           // 0 is the root, j + 1 node j
  std::vector<Distributions::Span> proposals = {};  // where the q of each node is, siblings sharing theirs
};

/// What bounds a tree that is drawn.
struct DrawnTreeShape {
  bool is_independent;  // every child from all of q, rather than from what older siblings have left
  int max_branches, max_depth;
};

/// Draft the most probable successor again and again, of equals the lowest id; return how many.
///
/// The longest known context decides, and its order is kept while the window slides.
std::size_t draft_greedy(const Trie& trie, Context context, std::span<Token> tokens);

/// Draw a chain for every sequence, each token from the distribution q of its context; if it is coupled, by the noise
/// that verifiers share.
///
/// All take a step before any takes the next one, so that the memory which one needs is on its way while the others are
/// served. `max_entries`: most entries of all distributions together. A chain ends before one that may not fit, so
/// before its token is drawn, or the tokens that are there would not be draws any more. 0 keeps no distribution.
void draw_chains(const Trie& trie, std::span<GraphDraft> drafts, const DistributionOptions& options, bool is_coupled,
                 std::size_t max_entries, Distributions& out);

/// Draw a tree for every sequence; graph_drafter.cpp says why it is exact. `max_entries`: most entries of the
/// distributions of all nodes together, siblings counted apart.
void draw_trees(const Trie& trie, std::span<GraphDraft> drafts, const DistributionOptions& options,
                const DrawnTreeShape& shape, std::size_t max_entries, Distributions& out);

}  // namespace speculant
