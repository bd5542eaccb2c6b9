// Sorted keys to records: one pass writes all levels at once.
#pragma once

#include <memory>
#include <vector>

#include "builder/keys.hpp"
#include "builder/records.hpp"

namespace speculant {

/// Turns sorted keys, given in any portions, into records.
///
/// How many tokens a key shares with the key before it tells which levels begin a new record.
class Emitter {
 public:
  /// Buffer so many records of every level.
  Emitter(const KeyLayout& layout, std::size_t capacity);
  Emitter(const Emitter&) = delete;

  /// Overwrite the buffers with the records of keys from `row` on until one is full, and return the next row.
  ///
  /// `keys` ascend and are not below those given before; equal ones may repeat. `weights` says how often each occurs;
  /// every key counts once if it is empty.
  std::size_t emit(std::span<const std::uint64_t> keys, Weights weights, std::size_t row);

  /// The records of n-grams of `depth + 1` tokens that the last call wrote; on the last level they have no child.
  std::span<Record> records(std::size_t depth) { return {levels_[depth].buffer.get(), levels_[depth].filled}; }

  const KeyLayout& layout() const { return layout_; }
  /// Records so far of every level, and the sums of their counts.
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

}  // namespace speculant
