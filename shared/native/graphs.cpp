#include "graphs.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace speculant {

Graphs::Graphs(std::vector<Trie> tries) : tries_(std::move(tries)) {
  if (tries_.size() > kMaxGraphs) throw std::invalid_argument("at most " + std::to_string(kMaxGraphs) + " graphs");
  if (tries_.empty()) tries_.emplace_back();
  for (const Trie& trie : tries_) max_order_ = std::max(max_order_, trie.max_order());
}

Contexts Graphs::extend(const Contexts& contexts, Token token) const {
  Contexts next{};
  for (std::size_t graph = 0; graph < size(); ++graph) next[graph] = tries_[graph].extend(contexts[graph], token);
  return next;
}

Contexts Graphs::match(std::span<const Token> tokens) const {
  Contexts contexts{};
  for (std::size_t graph = 0; graph < size(); ++graph) contexts[graph] = tries_[graph].match(tokens);
  return contexts;
}

void Graphs::prefetch_all_children(const Contexts& contexts) const {
  for (std::size_t graph = 0; graph < size(); ++graph) tries_[graph].prefetch_all_children(contexts[graph]);
}

}  // namespace speculant
