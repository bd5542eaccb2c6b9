// A draft in the form in which it is stored and sent: a flat list of nodes that form a chain or a tree.
//
// Every method of drafting fills it only through the functions below.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trie.hpp"

namespace speculant {

/// Distributions, concatenated.
struct Distributions {
  struct Span {
    std::size_t first, last;
    std::size_t size() const { return last - first; }
  };
  std::vector<std::uint32_t> tokens;
  std::vector<float> probabilities;

  std::span<const float> probabilities_of(Span q) const { return std::span(probabilities).subspan(q.first, q.size()); }
  void resize(std::size_t size) { tokens.resize(size), probabilities.resize(size); }
};

/// A node comes after its parent. A parent is 0 for the root, which is the end of the sequence, and j + 1 for node j.
///
/// A strategy has path probabilities for all of its nodes or for none, and likewise proposals.
struct Draft {
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<double> probabilities;           // of whole paths
  std::vector<Distributions::Span> proposals;  // the span of each node's q; siblings share theirs
  bool ended_early = false;                    // whether it has fewer nodes than requested

  std::size_t size() const { return tokens.size(); }
  /// The node that was added last, as a parent; the root if there is none.
  std::int32_t last() const { return static_cast<std::int32_t>(size()); }

  void add(std::int32_t parent, Token token) { parents.push_back(parent), tokens.push_back(token); }
  void add(std::int32_t parent, Token token, double path_probability) {
    add(parent, token);
    probabilities.push_back(path_probability);
  }
  void add(std::int32_t parent, Token token, Distributions::Span q) {
    add(parent, token);
    proposals.push_back(q);
  }
  /// Keep the first nodes.
  void cut(std::size_t size) {
    tokens.resize(size), parents.resize(size);
    if (!probabilities.empty()) probabilities.resize(size);
    if (!proposals.empty()) proposals.resize(size);
  }
  /// Keep the nodes marked in `is_kept`, which marks the parent of each, too.
  void keep(std::span<const std::uint8_t> is_kept) {
    std::vector<std::int32_t> numbers{0};  // new indices of the nodes as parents, the root first
    std::size_t kept = 0;
    for (std::size_t node = 0; node < size(); ++node) {
      if (is_kept[node]) {
        tokens[kept] = tokens[node];
        parents[kept] = numbers[static_cast<std::size_t>(parents[node])];
        if (!probabilities.empty()) probabilities[kept] = probabilities[node];
        if (!proposals.empty()) proposals[kept] = proposals[node];
        ++kept;
      }
      numbers.push_back(static_cast<std::int32_t>(kept));
    }
    cut(kept);
  }
  void clear() { cut(0), ended_early = false; }

  /// Append the nodes to the arrays of a batch, one draft after another.
  template <class Lengths, class Tokens, class Parents, class Probabilities>
  void append_to(Lengths& all_lengths, Tokens& all_tokens, Parents& all_parents,
                 Probabilities& all_probabilities) const {
    all_lengths.push_back(static_cast<typename Lengths::value_type>(size()));
    all_tokens.insert(all_tokens.end(), tokens.begin(), tokens.end());
    all_parents.insert(all_parents.end(), parents.begin(), parents.end());
    all_probabilities.insert(all_probabilities.end(), probabilities.begin(), probabilities.end());
  }
};

}  // namespace speculant
