// A trie, and the memory that it is a view of.
#pragma once

#include "arrays.hpp"
#include "session_history.hpp"
#include "trie.hpp"

namespace speculant {

struct GraphView {
  GraphView(Vector<const std::uint32_t> words, const Table<const std::int64_t>& table)
      : words(std::move(words)), trie(as_span(this->words), as_span(table)) {}
  Vector<const std::uint32_t> words;
  Trie trie;
};

}  // namespace speculant
