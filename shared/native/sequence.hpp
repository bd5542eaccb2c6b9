// Sequences that are drafted for, and what one tenant's sequences accepted.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "history.hpp"
#include "tree_drafter.hpp"

namespace speculant {

/// What one tenant's sequences accepted, newest first to be found.
struct LearnedMemory {
  explicit LearnedMemory(std::int64_t max_tokens) : history(std::max<std::int64_t>(max_tokens, 1), {4, 2}) {}

  /// Add a text; no match runs across its ends.
  void add(std::span<const Token> tokens) {
    history.append(std::array{kSeparator});
    history.append(tokens);
  }

  SessionHistory history;
  std::shared_ptr<TargetRows> rows = std::make_shared<TargetRows>();
  std::atomic<bool> is_forgotten = false;  // nothing is added any more
};

/// The settings that a sequence goes by: those of the latest draft that was asked for.
struct SequenceSettings {
  std::array<bool, kNumSources> sources = {true, true, true, true, true};
  bool is_calibrated = true;  // the strategy's path probabilities are
};

/// One sequence that is drafted for.
class Sequence {
 public:
  /// `costs[n]`: of verifying n tokens relative to one, up to kMaxNodes + 1; empty if it is free. `learns`: later
  /// sequences may learn from this one.
  Sequence(std::shared_ptr<LearnedMemory> memory, std::int64_t max_tokens, bool learns, std::vector<double> costs);

  std::int64_t size() const { return history.size(); }
  /// Memory that is this sequence's own.
  std::int64_t num_bytes() const;
  std::span<const double> costs() const { return costs_; }
  /// What is drafted from.
  Sources sources(const Trie& trie) const;
  /// Note a draft: what comes next tells how good it was.
  void note(Draft latest) { draft = std::move(latest), has_draft = true; }
  /// Take the target's most probable tokens after nodes of the latest draft: best first, negative for none. Node 0 is
  /// the end of the sequence, j + 1 node j. They are learned with the tokens that are accepted next.
  void add_rows(std::span<const std::int64_t> nodes, std::span<const Token> tokens, std::size_t width);
  /// Take tokens of the vocabulary, or kNoToken: the prompt at first, as are further ones that say so, then what was
  /// accepted. From the latter `calibration` learns, if a calibrated draft was or will be asked for.
  void accept(TreeDrafter& drafter, const Trie& trie, Calibration& calibration, std::span<const Token> tokens,
              bool is_prompt);
  /// Whether the tokens from `position` on are these, as far as both are known.
  bool agrees(std::int64_t position, std::span<const Token> tokens) const;
  /// What followed the prompt, or the newest of it, after the last few tokens of the prompt itself: those make the
  /// first tokens of an answer known to a later sequence whose prompt ends alike.
  std::vector<Token> learnable() const;
  /// End: what may be learned is added to the memory, and returned.
  std::vector<Token> finish();

  std::shared_ptr<LearnedMemory> memory;
  SessionHistory history;
  Context context = {};
  SequenceSettings settings = {};
  bool learns;
  bool is_calibrated = false;  // a calibrated draft was asked for
  double reliability = 1.0;    // of the probabilities that its drafts were given
  Draft draft = {};            // since the latest tokens came
  bool has_draft = false;

 private:
  struct Row {
    Token before, last;
    std::array<Token, kRowWidth> tokens;
  };
  void compare(std::span<const Token> accepted);

  std::vector<double> costs_;
  std::shared_ptr<TargetRows> rows_;  // the memory's, or a copy
  std::vector<Row> new_rows_;
  std::int64_t num_prompt_tokens_ = 0;
  double predicted_ = 0.0, realised_ = 0.0;  // accepted tokens of latest drafts
};

}  // namespace speculant
