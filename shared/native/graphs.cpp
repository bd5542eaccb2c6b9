#include "graphs.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace speculant {

Graphs::Graphs(std::vector<Shared> graphs) {
  if (graphs.size() > kMaxNamedGraphs) {
    throw std::invalid_argument("at most " + std::to_string(kMaxNamedGraphs) + " graphs");
  }
  if (graphs.empty()) graphs.push_back(std::make_shared<const Graph>());
  for (const Shared& graph : graphs) add(graph);
  num_named_ = size();
}

Graphs Graphs::with(std::span<const Shared> learned) const {
  Graphs all = *this;
  for (const Shared& graph : learned.first(std::min(learned.size(), kMaxGraphs - size()))) all.add(graph);
  return all;
}

Contexts Graphs::extend(const Contexts& contexts, Token token) const {
  Contexts next{};
  for (std::size_t graph = 0; graph < size(); ++graph)
    next[graph] = graphs_[graph]->trie.extend(contexts[graph], token);
  return next;
}

Contexts Graphs::match(std::span<const Token> tokens) const {
  Contexts contexts{};
  for (std::size_t graph = 0; graph < size(); ++graph) contexts[graph] = graphs_[graph]->trie.match(tokens);
  return contexts;
}

void Graphs::prefetch_all_children(const Contexts& contexts) const {
  for (std::size_t graph = 0; graph < size(); ++graph) graphs_[graph]->trie.prefetch_all_children(contexts[graph]);
}

void Graphs::add(const Shared& graph) {
  if ((graphs_.empty() || first_model().empty()) && !graph->model.empty()) first_model_ = size();
  graphs_.push_back(graph);
  max_order_ = std::max(max_order_, graph->trie.max_order());
}

}  // namespace speculant
