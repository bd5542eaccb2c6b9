// The graphs that sequences draft from: one, or several in layers, such as a house's style, a project and its history;
// and those of what a tenant's sequences accepted earlier.
//
// Each layer keeps its own context of a sequence, as long as it knows, and is one more source of the mixture; weights
// and bins tell how far each is right. So a graph of little text, or of text that has nothing to do with a sequence,
// costs look-ups and no tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "neural/model.hpp"
#include "trie.hpp"

namespace speculant {

/// Most graphs of a sequence: four that are named, and what its tenant has learned. A look-up in each is paid for every
/// node of a tree.
inline constexpr std::size_t kMaxGraphs = 8, kMaxNamedGraphs = 4;

/// What was made of a corpus.
struct Graph {
  Trie trie = {};
  neural::Model model = {};
};

/// What each graph knows of the end of a sequence.
using Contexts = std::array<Context, kMaxGraphs>;

class Graphs {
 public:
  using Shared = std::shared_ptr<const Graph>;

  /// Throws std::invalid_argument where there are more than kMaxNamedGraphs. None are one that knows nothing.
  explicit Graphs(std::vector<Shared> graphs);
  /// These, and then graphs of learned text, the first ones as far as there is room.
  Graphs with(std::span<const Shared> learned) const;

  std::size_t size() const { return graphs_.size(); }
  const Trie& operator[](std::size_t graph) const { return graphs_[graph]->trie; }
  /// The first graph that has a neural model, or the first one.
  std::size_t neural() const { return neural_; }
  const neural::Model& model() const { return graphs_[neural_]->model; }
  /// Whether a graph is of learned text.
  bool is_learned(std::size_t graph) const { return graph >= num_named_; }
  /// Of all graphs.
  std::int64_t max_order() const { return max_order_; }
  /// Whether there is one that was named.
  bool has_named() const { return graphs_[0]->trie.max_order() > 0; }

  /// Of all graphs the one of the longest context, of equals the first.
  std::size_t longest(const Contexts& contexts) const { return longest_of(contexts, size()); }
  /// The same of those that were named.
  std::size_t longest_named(const Contexts& contexts) const { return longest_of(contexts, num_named_); }

  /// The longest contexts with children after one token more.
  Contexts extend(const Contexts& contexts, Token token) const;
  /// The longest ends of `tokens` that have children.
  Contexts match(std::span<const Token> tokens) const;
  /// Ask the processor for all that contexts, and shorter ones, need soon.
  void prefetch_all_children(const Contexts& contexts) const;

 private:
  static std::size_t longest_of(const Contexts& contexts, std::size_t count) {
    std::size_t best = 0;
    for (std::size_t graph = 1; graph < count; ++graph) {
      if (contexts[graph].order > contexts[best].order) best = graph;
    }
    return best;
  }
  void add(const Shared& graph);

  std::vector<Shared> graphs_;
  std::size_t num_named_ = 0, neural_ = 0;
  std::int64_t max_order_ = 0;
};

}  // namespace speculant
