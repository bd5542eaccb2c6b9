// A sequence that is drafted for, and what one tenant's sequences accepted.
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

/// Tokens that the positions of a chain have in common, in a sequence and in learned text. Learned text has no chain of
/// single tokens: it would bring 1.6 % more for Python answers, less than 1 % for others, and take 8 to 33 % longer
/// (docs/experiments.md, "Learning from earlier sequences").
inline constexpr std::array<int, kNumChains> kSessionChains = {4, 1}, kLearnedChains = {4, 2};

/// What one tenant's sequences accepted, newest first to be found.
struct LearnedMemory {
  explicit LearnedMemory(std::int64_t max_tokens) : history(std::max<std::int64_t>(max_tokens, 1), kLearnedChains) {}

  /// Add a text; no match runs across its ends, nor across a place where another text came between two parts of it.
  void add(std::span<const Token> tokens);

  mutable FairLock lock{LockKind::kTenant};  // for history, rows and graphs; `add` takes it
  SessionHistory history;
  TargetRows rows;
  std::vector<Graphs::Shared> graphs = {};  // of older text, which has left the history; new sequences draft from them
  std::atomic<bool> is_forgotten = false;   // nothing is added any more
};

/// The settings that a sequence goes by: those of the latest draft that was asked for.
struct SequenceSettings {
  std::array<bool, kNumSources> sources = {true, true, true, true, true, true};
  bool is_calibrated = true;  // the strategy's path probabilities are
};

/// What is added to a sequence, part by part.
struct Addition {
  std::span<const Token> tokens;  // that are yet to be added
  bool is_prompt;
  bool has_begun = false;
  bool may_wait = false;  // what can be learned from them may be learned later
  std::size_t most_learned =
      std::numeric_limits<std::size_t>::max();  // of the tokens, the latest ones are learned from
  bool is_inside = false;                       // the token before the next one was learned from, too
};

/// One sequence that is drafted for. All but finish() is called with its lock held.
class Sequence {
 public:
  /// Draft from graphs, those of the memory included; `learns`: later sequences may learn from this one.
  Sequence(std::shared_ptr<LearnedMemory> memory, Graphs graphs, std::int64_t max_tokens, bool learns);

  std::int64_t size() const { return history.size(); }
  /// Memory that is this sequence's own.
  std::int64_t num_bytes() const;
  /// What is drafted from.
  Sources sources() const;
  /// Go by the settings of a draft that is asked for.
  void adopt(const SequenceSettings& wanted) { settings = wanted, is_calibrated |= wanted.is_calibrated; }
  /// Note the nodes of a draft, which rows of the target will name. `estimates`: of their paths, as TreeDrafter has
  /// them; learned from with the tokens that are accepted next.
  void note(const Draft& latest, std::vector<double> estimates = {}) {
    draft.tokens = latest.tokens, draft.parents = latest.parents, draft.probabilities = std::move(estimates);
  }
  /// Take the target's most probable tokens after nodes of the latest draft: best first, negative for none. Node 0 is
  /// the end of the sequence, j + 1 node j. They are learned with the tokens that are accepted next.
  void add_rows(std::span<const std::int64_t> nodes, std::span<const Token> tokens, std::size_t width);
  /// Take the next part of an addition, as much as locks may be held for: tokens of the vocabulary, or kNoToken. First
  /// comes the prompt, as do further tokens that say so, then what was accepted. From the latter `calibration` learns,
  /// if a calibrated draft was or will be asked for.
  void accept(TreeDrafter& drafter, Calibration& calibration, Addition& addition);
  /// Learn from the tokens that were accepted last, if that had to wait.
  void learn(TreeDrafter& drafter, Calibration& calibration);
  /// Whether the tokens from `position` on are these, as far as both are known.
  bool agrees(std::int64_t position, std::span<const Token> tokens) const;
  /// End: what may be learned is added to the memory, and returned.
  std::vector<Token> finish();

  FairLock lock{LockKind::kSequence};
  const std::shared_ptr<LearnedMemory> memory;
  const Graphs graphs;
  SessionHistory history;
  Contexts contexts = {};
  SequenceSettings settings = {};
  bool learns;
  bool is_calibrated = false;  // a calibrated draft was asked for
  Draft draft = {};            // since the latest tokens came: tokens, parents, and estimates as probabilities

 private:
  struct Row {
    Token before, last;
    std::array<Token, kRowWidth> tokens;
  };
  TargetRowsOverlay rows_;  // over the memory's; nothing of a sequence that others learn from
  std::vector<Row> new_rows_;
  std::int64_t num_prompt_tokens_ = 0;
  std::vector<Token> unlearned_;      // the tokens that were accepted last, if they wait to be learned from
  Contexts unlearned_contexts_ = {};  // before them
  Draft unlearned_draft_ = {};        // of the same place
};

}  // namespace speculant
