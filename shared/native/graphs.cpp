#include "graphs.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace speculant {

Graphs::Graphs(std::vector<Shared> tries) {
  if (tries.size() > kMaxNamedGraphs) {
    throw std::invalid_argument("at most " + std::to_string(kMaxNamedGraphs) + " graphs");
  }
  if (tries.empty()) tries.push_back(std::make_shared<const Trie>());
  for (const Shared& trie : tries) add(trie);
  num_named_ = size();
}

Graphs Graphs::with(std::span<const Shared> learned) const {
  Graphs all = *this;
  for (const Shared& trie : learned.first(std::min(learned.size(), kMaxGraphs - size()))) all.add(trie);
  return all;
}

Contexts Graphs::extend(const Contexts& contexts, Token token) const {
  Contexts next{};
  for (std::size_t graph = 0; graph < size(); ++graph) next[graph] = tries_[graph]->extend(contexts[graph], token);
  return next;
}

Contexts Graphs::match(std::span<const Token> tokens) const {
  Contexts contexts{};
  for (std::size_t graph = 0; graph < size(); ++graph) contexts[graph] = tries_[graph]->match(tokens);
  return contexts;
}

void Graphs::prefetch_all_children(const Contexts& contexts) const {
  for (std::size_t graph = 0; graph < size(); ++graph) tries_[graph]->prefetch_all_children(contexts[graph]);
}

void Graphs::add(const Shared& trie) {
  tries_.push_back(trie);
  max_order_ = std::max(max_order_, trie->max_order());
}

}  // namespace speculant
