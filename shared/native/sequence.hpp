// A sequence to draft for, and the accepted text of one tenant's sequences.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "calibration.hpp"
#include "draft.hpp"
#include "graphs.hpp"
#include "history.hpp"
#include "locks.hpp"
#include "target_rows.hpp"
#include "tree_drafter.hpp"

namespace speculant {

/// Number of tokens that the positions of a chain share, in a sequence and in learned text. Learned text has no chain
/// of single tokens. It would gain 1.6 % for Python answers and less than 1 % for others, and take 8 to 33 % longer
/// (docs/experiments.md, "Learning from earlier sequences").
inline constexpr std::array<int, kNumChains> kSessionChains = {4, 1}, kLearnedChains = {4, 2};

/// The accepted text of one tenant's sequences; look-ups find the newest first.
struct LearnedMemory {
  explicit LearnedMemory(std::int64_t max_tokens) : history(std::max<std::int64_t>(max_tokens, 1), kLearnedChains) {}

  /// Add a text; no match crosses its ends, or a point where another text was added between two of its parts.
  void add(std::span<const Token> tokens);

  mutable FairLock lock{LockKind::kTenant};  // for history, rows and graphs; `add` takes it
  SessionHistory history;
  TargetTopK rows;
  // Graphs of older text that is no longer in the history; new sequences draft from them.
  std::vector<Graphs::Shared> graphs = {};
  std::atomic<bool> is_forgotten = false;  // no further text is added
};

/// The settings of a sequence, from its latest requested draft.
struct SequenceSettings {
  std::array<bool, kNumSources> sources = {true, true, true, true, true, true};
  bool is_calibrated = true;  // whether the strategy's path probabilities are calibrated
};

/// An addition to a sequence, applied part by part.
struct Addition {
  std::span<const Token> tokens;  // still to be added
  bool is_prompt;
  bool has_begun = false;
  bool may_wait = false;                                               // learning from them may be deferred
  std::size_t most_learned = std::numeric_limits<std::size_t>::max();  // number of latest tokens that are learned
  bool is_inside = false;                                              // whether the previous token was learned, too
};

/// One sequence to draft for. All methods except finish() are called with its lock held.
class Sequence {
 public:
  /// Draft from graphs, including those of the memory; `learns`: later sequences may learn from this one.
  Sequence(std::shared_ptr<LearnedMemory> memory, Graphs graphs, std::int64_t max_tokens, bool learns);

  std::int64_t size() const { return history.size(); }
  /// This sequence's own memory, in bytes.
  std::int64_t num_bytes() const;
  /// The graphs to draft from.
  Sources sources() const;
  /// Use the settings of a requested draft.
  void adopt(const SequenceSettings& wanted) { settings = wanted, is_calibrated |= wanted.is_calibrated; }
  /// Record the nodes of a draft, to which the target's rows will refer. `estimates`: path probabilities before
  /// calibration, from TreeDrafter. They are learned from with the next accepted tokens.
  void note(const Draft& latest, std::vector<double> estimates = {}) {
    draft.tokens = latest.tokens, draft.parents = latest.parents, draft.probabilities = std::move(estimates);
  }
  /// Take the target's most probable tokens after nodes of the latest draft, best first, negative for none. Node 0 is
  /// the end of the sequence, and j + 1 is node j. They are learned with the next accepted tokens.
  void add_top_k(std::span<const std::int64_t> nodes, std::span<const Token> tokens, std::size_t width);
  /// Add the next part of an addition, as large as one hold of the locks allows. Tokens are ids of the vocabulary, or
  /// kNoToken. The prompt comes first, and its further tokens are marked as prompt, too; then come accepted tokens.
  /// `calibration` learns from accepted tokens if a calibrated draft was or will be requested.
  void accept(TreeDrafter& drafter, Calibration& calibration, Addition& addition);
  /// Learn from the last accepted tokens, if this was deferred.
  void learn(TreeDrafter& drafter, Calibration& calibration);
  /// Whether the tokens from `position` on equal `tokens`, as far as both are known.
  bool agrees(std::int64_t position, std::span<const Token> tokens) const;
  /// End the sequence: add the text that may be learned to the memory, and return it.
  std::vector<Token> finish();

  FairLock lock{LockKind::kSequence};
  const std::shared_ptr<LearnedMemory> memory;
  const Graphs graphs;
  SessionHistory history;
  Contexts contexts = {};
  SequenceSettings settings = {};
  bool learns;
  bool is_calibrated = false;  // a calibrated draft was requested
  Draft draft = {};            // after the latest tokens: tokens, parents, and estimates as probabilities

 private:
  struct Row {
    Token before, last;
    std::array<Token, kRowWidth> tokens;
  };
  TargetTopKOverlay rows_;  // overlay on the memory's rows; empty if others learn from this sequence
  std::vector<Row> new_rows_;
  std::int64_t num_prompt_tokens_ = 0;
  std::vector<Token> unlearned_;      // the last accepted tokens, if learning was deferred
  Contexts unlearned_contexts_ = {};  // before them
  Draft unlearned_draft_ = {};        // made at the same position
};

}  // namespace speculant
