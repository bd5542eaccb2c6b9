// The graphs that sequences draft from: one, or several in layers, such as a house's style, a project and its history.
//
// Each layer keeps its own context of a sequence, as long as it knows, and is one more source of the mixture; weights
// and bins tell how far each is right. So a graph of little text, or of text that has nothing to do with a sequence,
// costs look-ups and no tokens.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trie.hpp"

namespace speculant {

/// Most graphs of a sequence. A look-up in each is paid for every node of a tree.
inline constexpr std::size_t kMaxGraphs = 4;

/// What each graph knows of the end of a sequence.
using Contexts = std::array<Context, kMaxGraphs>;

class Graphs {
 public:
  /// Throws std::invalid_argument where there are more than kMaxGraphs. None are one that knows nothing.
  explicit Graphs(std::vector<Trie> tries);

  std::size_t size() const { return tries_.size(); }
  const Trie& operator[](std::size_t graph) const { return tries_[graph]; }
  /// Of all graphs.
  std::int64_t max_order() const { return max_order_; }

  /// The graph of the longest context, of equals the first.
  static std::size_t longest(const Contexts& contexts) {
    std::size_t best = 0;
    for (std::size_t graph = 1; graph < kMaxGraphs; ++graph) {
      if (contexts[graph].order > contexts[best].order) best = graph;
    }
    return best;
  }

  /// The longest contexts with children after one token more.
  Contexts extend(const Contexts& contexts, Token token) const;
  /// The longest ends of `tokens` that have children.
  Contexts match(std::span<const Token> tokens) const;
  /// Ask the processor for all that contexts, and shorter ones, need soon.
  void prefetch_all_children(const Contexts& contexts) const;

 private:
  std::vector<Trie> tries_;
  std::int64_t max_order_ = 0;
};

}  // namespace speculant
