// The graphs that sequences draft from. There are one or several named graphs in layers, such as a house style, a
// project and its history. There are also graphs of text that a tenant's earlier sequences accepted.
//
// Each layer keeps its own longest known context of a sequence, and is one more source of the mixture. Weights and bins
// learn the reliability of each. So a graph of little or unrelated text costs look-ups but no tokens.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "neural/model.hpp"
#include "trie.hpp"

namespace speculant {

/// Maximum number of graphs of a sequence: four named ones, and the graphs of its tenant's learned text. Every node of
/// a tree costs a look-up in each.
inline constexpr std::size_t kMaxGraphs = 8, kMaxNamedGraphs = 4;

/// Return an id that no graph of this process has had before.
inline std::uint64_t next_graph_id() {
  static std::atomic<std::uint64_t> latest = 0;
  return ++latest;
}

/// The parts of a graph's file.
struct Graph {
  Trie trie = {};
  neural::Model model = {};
  /// Identifies the graph in caches. Its address would not do, because a later graph may have the same one.
  std::uint64_t id = next_graph_id();
};

/// The context of the end of a sequence in each graph.
using Contexts = std::array<Context, kMaxGraphs>;

class Graphs {
 public:
  using Shared = std::shared_ptr<const Graph>;

  /// Throws std::invalid_argument if there are more than kMaxNamedGraphs. No graphs count as one empty graph.
  explicit Graphs(std::vector<Shared> graphs);
  /// These graphs, followed by graphs of learned text up to the limit.
  Graphs with(std::span<const Shared> learned) const;

  std::size_t size() const { return graphs_.size(); }
  const Trie& operator[](std::size_t graph) const { return graphs_[graph]->trie; }
  std::uint64_t id(std::size_t graph) const { return graphs_[graph]->id; }
  const neural::Model& model(std::size_t graph) const { return graphs_[graph]->model; }
  /// The neural model of the first graph that has one, otherwise an empty model.
  const neural::Model& first_model() const { return model(first_model_); }
  /// Whether a graph holds learned text.
  bool is_learned(std::size_t graph) const { return graph >= num_named_; }
  /// Largest order of all graphs.
  std::int64_t max_order() const { return max_order_; }
  /// Whether there is a named graph.
  bool has_named() const { return graphs_[0]->trie.max_order() > 0; }

  /// The graph with the longest context, the first among equals.
  std::size_t longest(const Contexts& contexts) const { return longest_of(contexts, size()); }
  /// The same among named graphs.
  std::size_t longest_named(const Contexts& contexts) const { return longest_of(contexts, num_named_); }

  /// The longest contexts with children after one more token.
  Contexts extend(const Contexts& contexts, Token token) const;
  /// The longest suffixes of `tokens` with children.
  Contexts match(std::span<const Token> tokens) const;
  /// Prefetch the memory of contexts and shorter ones.
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
  std::size_t num_named_ = 0, first_model_ = 0;
  std::int64_t max_order_ = 0;
};

}  // namespace speculant
