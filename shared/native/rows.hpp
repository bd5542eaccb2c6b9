// Maps the rows of an engine's batch to sequences.
//
// Rows move and are reused, and most engines do not name their requests. So a sequence without a name is recognised by
// its text:
//   - A row continues the sequence that was in the same row under two conditions. The row's text is longer by at most
//     the tokens of one step, and it has that sequence's last tokens at their positions.
//   - Otherwise it continues the longest sequence for which these conditions hold.
//   - Otherwise it begins a new sequence.
// A named row continues the sequence of its name, unless its text is shorter. A sequence that no row continues has
// ended. If the engine preempted it and resumes it, it begins again with its present text.
//
// Two texts with the same last tokens at the same positions rarely differ before them; if they do, drafts are worse.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace speculant {

/// One row: its whole text, including the prompt, and the name of its request, empty if it has none.
struct Row {
  std::span<const std::int32_t> text;
  std::string_view name = {};
};

/// The end of a sequence that ended with text that its drafter has not read.
struct UnreadRow {
  std::uint64_t id = 0;
  std::size_t begun = 0, read = 0, size = 0;  // lengths of its text: at first, when it was last read, and at its end
  std::vector<std::int32_t> tail = {};        // its last tokens
};

/// The sequences of a batch.
struct MatchedRows {
  std::vector<std::uint64_t> ids;    // per row, its sequence
  std::vector<std::uint32_t> begun;  // rows that begin a sequence
  std::vector<std::uint64_t> ended;  // sequences that no row continues
  std::vector<UnreadRow> unread;     // ended sequences with text that the drafter has not read
  std::uint64_t num_new = 0;         // new tokens of continued sequences
};

class RowTracker {
 public:
  /// `most_new`: maximum tokens that a step adds to a row.
  explicit RowTracker(std::size_t most_new) : most_new_(most_new) {}

  /// Find the sequence of every row of a whole batch, and store their texts.
  MatchedRows match(std::span<const Row> rows);
  /// Number of rows of the latest batch.
  std::size_t num_rows() const { return tracked_.size(); }
  /// Store a row's text if it continues the sequence that was in this row, and return whether it does. If as many rows
  /// as before all do, this replaces `match`. If not, `match` must follow.
  bool follow(std::size_t index, const Row& row);
  /// Record that the drafter has read the texts of the latest batch.
  void mark_read();
  /// Record that the drafter has read the texts with which the latest batch's sequences began.
  void mark_prompts_read();
  /// For each row of the latest batch that was never read, the length of its text when it began; 0 for other rows.
  std::vector<std::size_t> prompt_lengths() const;

 private:
  struct Tracked {
    std::uint64_t id = 0;  // 0: taken by another row
    std::string name = {};
    std::size_t begun = 0, read = 0, size = 0;  // as in UnreadRow
    std::vector<std::int32_t> tail = {};        // its last tokens, at least as many as are compared
    void extend(std::span<const std::int32_t> text);
  };
  bool continues(const Row& row, const Tracked& former, std::size_t num_compared) const;

  std::size_t most_new_;
  std::uint64_t last_id_ = 0;
  std::vector<Tracked> tracked_;  // of the previous batch, by row
};

}  // namespace speculant
