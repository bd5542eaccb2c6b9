// Whether the arrays of a graph are those that a build writes.
#pragma once

#include <optional>
#include <string>

#include "trie.hpp"

namespace speculant {

/// What no build would have written, or nothing; in time linear in the graph's size.
std::optional<std::string> find_damage(const Trie& trie, std::span<const std::uint32_t> unigram_index);

}  // namespace speculant
