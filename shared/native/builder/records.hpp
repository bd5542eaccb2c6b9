// The columns of records, as in graph/layout.py; the last passes over a trie, and the check of a whole trie.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "builder/keys.hpp"

namespace speculant {

/// A level under construction.
struct MutableLevel : Level {
  void mark(std::int64_t node, std::int64_t argmax_offset) const {
    const_cast<std::uint32_t*>(record(node))[kToken] =
        static_cast<std::uint32_t>(token(node)) | static_cast<std::uint32_t>(argmax_offset) << kTokenBits;
  }
  std::uint32_t& link(std::int64_t node) const { return const_cast<std::uint32_t*>(record(node))[width - 1]; }
};

inline Range children_of(const Level& level, std::int64_t node) {
  return {level.record(node)[kChild], level.record(node + 1)[kChild]};
}

// From sorted keys to records: one pass writes all levels at once.

/// A record of any level while a build counts; later, of levels 1 to N.
struct Record {
  std::uint32_t token, cumulative, child, link;
};

/// Turns sorted keys, given in portions of any size, into records.
///
/// The number of tokens that a key shares with the previous key determines which levels begin a new record.
class Emitter {
 public:
  /// Buffer `capacity` records of every level.
  Emitter(const KeyLayout& layout, std::size_t capacity);
  Emitter(const Emitter&) = delete;

  /// Overwrite the buffers with the records of keys from `row` on until one is full, and return the next row.
  ///
  /// `keys` ascend and are not below earlier ones; equal keys may repeat. `weights` holds the count of each key; if it
  /// is empty, every key counts once.
  std::size_t emit(std::span<const std::uint64_t> keys, Weights weights, std::size_t row);

  /// The records of n-grams of `depth + 1` tokens from the last call; on the last level they have no child.
  std::span<Record> records(std::size_t depth) { return {levels_[depth].buffer.get(), levels_[depth].filled}; }

  const KeyLayout& layout() const { return layout_; }
  /// Number of records so far on every level, and the sums of their counts.
  std::vector<std::int64_t> num_nodes() const;
  std::vector<std::int64_t> totals() const;

 private:
  struct BuiltLevel {
    std::unique_ptr<Record[]> buffer;
    std::size_t filled = 0;
    std::int64_t num_nodes = 0;
    std::int64_t skipped = 0;  // weight of keys that are too short for the level
  };

  std::int64_t num_shared(const std::uint64_t* key) const;

  KeyLayout layout_;
  std::size_t capacity_;
  std::vector<BuiltLevel> levels_;
  std::vector<std::uint64_t> last_key_;
  std::int64_t total_ = 0;  // weight of all keys
};

// The last passes: the token index, most frequent children, and suffix links. Threads may divide a level: each pass
// works on records `start` to `stop - 1`. All throw std::invalid_argument if records refer to records that do not
// exist.

/// Set `index[token]` to the first record of level 1 with this token or a higher one.
void fill_unigram_index(const Level& unigrams, std::span<std::uint32_t> index);

/// Write the offset of the most frequent child, the first among equals, into the records; return the number of records
/// with children.
std::int64_t mark_argmax(const MutableLevel& level, const Level& next, std::int64_t start, std::int64_t stop);

/// Link the n-grams of two tokens whose first tokens are the records of level 1.
void link_pairs(const Level& unigrams, const MutableLevel& pairs, std::span<const std::uint32_t> index,
                std::int64_t start, std::int64_t stop);

/// Link the children of records of `parents`, which are linked themselves.
void link_children(const Level& grandparents, const Level& parents, const MutableLevel& level, std::int64_t start,
                   std::int64_t stop);

/// Return the first defect that no build would have written, or nothing; the time is linear in the graph's size.
std::optional<std::string> find_damage(const Trie& trie, std::span<const std::uint32_t> unigram_index);

}  // namespace speculant
