// Drafts for a batch of sequences, by every strategy; the sequences, and what one tenant's sequences accepted.
//
// What takes memory, apart from the graph's file:
//   a sequence   4 KB, and 20 bytes a token, whose number is rounded up to a power of two: 168 KB for 8,192 tokens. One
//                that nobody learns from adds 90 to 180 bytes for each slot of rows that it fills.
//   a tenant     20 bytes a learned token, rounded up in the same way: 21 MB for a million, 32 MB while they grow; and
//                2.4 MB for rows of the target, from the first one on
//   a graph      7.9 MB: the bins of its calibration
//   a thread     1.6 MB for each tree drafter: the successors that it remembers. There are as many as ever drafted at
//                the same time.
// docs/sizing.md shows the first two on any machine.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "background.hpp"
#include "calibration.hpp"
#include "draft.hpp"
#include "graph_drafter.hpp"
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

  mutable FairLock lock{LockKind::kTenant};  // for history and rows; `add` takes it
  SessionHistory history;
  TargetRows rows;
  std::atomic<bool> is_forgotten = false;  // nothing is added any more
};

/// What was made of a corpus.
struct Graph {
  Trie trie = {};
  neural::Model model = {};
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
};

/// One sequence that is drafted for. All but finish() is called with its lock held.
class Sequence {
 public:
  /// `learns`: later sequences may learn from this one.
  Sequence(std::shared_ptr<LearnedMemory> memory, std::int64_t max_tokens, bool learns);

  std::int64_t size() const { return history.size(); }
  /// Memory that is this sequence's own.
  std::int64_t num_bytes() const;
  /// What is drafted from.
  Sources sources(const Graph& graph) const;
  /// Go by the settings of a draft that is asked for.
  void adopt(const SequenceSettings& wanted) { settings = wanted, is_calibrated |= wanted.is_calibrated; }
  /// Note the nodes of a draft, which rows of the target will name.
  void note(const Draft& latest) { draft.tokens = latest.tokens, draft.parents = latest.parents; }
  /// Take the target's most probable tokens after nodes of the latest draft: best first, negative for none. Node 0 is
  /// the end of the sequence, j + 1 node j. They are learned with the tokens that are accepted next.
  void add_rows(std::span<const std::int64_t> nodes, std::span<const Token> tokens, std::size_t width);
  /// Take the next part of an addition, as much as locks may be held for: tokens of the vocabulary, or kNoToken. First
  /// comes the prompt, as do further tokens that say so, then what was accepted. From the latter `calibration` learns,
  /// if a calibrated draft was or will be asked for.
  void accept(TreeDrafter& drafter, const Graph& graph, Calibration& calibration, Addition& addition);
  /// Learn from the tokens that were accepted last, if that had to wait.
  void learn(TreeDrafter& drafter, const Graph& graph, Calibration& calibration);
  /// Whether the tokens from `position` on are these, as far as both are known.
  bool agrees(std::int64_t position, std::span<const Token> tokens) const;
  /// End: what may be learned is added to the memory, and returned.
  std::vector<Token> finish();

  FairLock lock{LockKind::kSequence};
  const std::shared_ptr<LearnedMemory> memory;
  SessionHistory history;
  Context context = {};
  SequenceSettings settings = {};
  bool learns;
  bool is_calibrated = false;  // a calibrated draft was asked for
  Draft draft = {};            // since the latest tokens came: tokens and parents

 private:
  struct Row {
    Token before, last;
    std::array<Token, kRowWidth> tokens;
  };
  TargetRowsOverlay rows_;  // over the memory's; nothing of a sequence that others learn from
  std::vector<Row> new_rows_;
  std::int64_t num_prompt_tokens_ = 0;
  std::vector<Token> unlearned_;    // the tokens that were accepted last, if they wait to be learned from
  Context unlearned_context_ = {};  // before them
};

/// How a strategy drafts: by the most frequent successors in the graph, by draws from their distribution, or best first
/// from all sources, calibrated. Which strategy does which, Python's table says.
enum class Method { kMostFrequent, kDrawn, kBestFirst };
inline constexpr const char* kMethods[] = {"most-frequent", "drawn", "best-first"};

/// Numbers of the wire.
enum class Siblings : int { kNone = 0, kWithoutReplacement, kIndependent };

/// How to draft.
struct DraftSettings {
  std::string strategy;  // as drafts name it
  Method method = Method::kBestFirst;
  bool fills_budget = false;  // whatever least probability is asked for
  SequenceSettings sequence = {};
  int max_depth = 1, max_branches = 1;
  DistributionOptions distribution = {};
  bool is_coupled = false;
  Siblings siblings = Siblings::kNone;
  bool omits_proposals = false;

  bool is_from_graph() const { return method != Method::kBestFirst; }
};

/// What is wanted for one sequence.
struct DraftRequest {
  Sequence* sequence;
  int budget;  // most nodes; more than kMaxNodes are never drafted, nor fewer than none
  std::uint64_t seed;
  std::optional<std::uint64_t> position = {};  // of the first token drafted; none: the end of the sequence
  double least_probability = 0.0;              // of a path; less probable ones are not drafted
  std::span<const Token> accepted = {};        // to be taken first, if the sequence still has so many tokens:
  std::uint64_t accepted_at = 0;
};

/// The settings that a StrategyOptions asks for.
using ReadSettings = std::function<DraftSettings(const std::string& options)>;

/// Drafts from one graph, and from what sequences accept. Calls may come from several threads at once; locks are held
/// for short parts of them.
class Drafter {
 public:
  /// `vocabulary_size`: ids below it are tokens. `max_session_tokens`: of one sequence that are looked back on.
  /// Trees of a batch are made on `num_threads` threads, and are the same on any number.
  Drafter(Graph graph, Token vocabulary_size, std::shared_ptr<Calibration> calibration, std::int64_t max_session_tokens,
          int num_threads, ReadSettings read_settings)
      : graph(std::move(graph)),
        vocabulary_size(vocabulary_size),
        calibration(std::move(calibration)),
        max_session_tokens_(max_session_tokens),
        num_threads_(std::max(num_threads, 1)),
        read_settings_(std::move(read_settings)) {}

  Drafter(const Drafter&) = delete;

  /// Begin a sequence without tokens, which goes by the settings of a request that chooses nothing.
  std::shared_ptr<Sequence> open(std::shared_ptr<LearnedMemory> memory, bool learns);

  /// Add tokens to a sequence, part by part.
  void accept(Sequence& sequence, std::span<const Token> tokens, bool is_prompt);
  /// Add the next part to a sequence, whose lock is held.
  void accept_part(Sequence& sequence, Addition& addition);

  /// What a StrategyOptions asks for; looked up once for each.
  std::shared_ptr<const DraftSettings> settings_of(const std::string& options);

  /// Begin a sequence of which these are the last tokens, to draft once as `settings` say; nothing is remembered.
  std::shared_ptr<Sequence> begin_after(std::span<const Token> tokens, const DraftSettings& settings);

  /// Draft for a batch; drafts are noted in their sequences. `max_entries`: most entries of all distributions together;
  /// see draw_chains.
  DraftBatch draft(std::span<const DraftRequest> requests, const DraftSettings& settings, std::size_t max_entries);

  /// Have sequences learned from soon, on another thread, while an engine verifies their drafts.
  void learn_soon(std::span<const std::shared_ptr<Sequence>> sequences);
  /// Learn from those at once; what another thread has begun is waited for.
  void learn_rest();

  /// Records of the graph that were read for the most frequent ones, by calls that have ended.
  std::int64_t num_read();

  const Graph graph;
  const Token vocabulary_size;
  const std::shared_ptr<Calibration> calibration;

 private:
  void draft_from_graph(std::span<const DraftRequest> requests, const DraftSettings& settings, std::size_t max_entries,
                        DraftBatch& batch);
  void draft_trees(std::span<const DraftRequest> requests, const DraftSettings& settings, DraftBatch& batch);

  const std::int64_t max_session_tokens_;
  class Loan;
  void begin(const DraftRequest& request, const DraftSettings& settings, TreeDrafter& tree);

  const int num_threads_;
  const ReadSettings read_settings_;
  std::mutex learning_;  // held while one sequence is learned from; locks.hpp says where it comes in their order
  std::mutex mutex_;     // for what follows; held for a few instructions
  std::unordered_map<std::string, std::shared_ptr<const DraftSettings>> settings_;
  std::vector<std::unique_ptr<TreeDrafter>> trees_;   // that nobody uses at present
  std::vector<std::shared_ptr<Sequence>> unlearned_;  // that are to be learned from
  // That were: the last owner of a memory may be Python, which must not be waited for where Python may wait for us.
  std::vector<std::shared_ptr<Sequence>> learned_;
  Background learner_{[this] { learn_rest(); }};  // last: it uses the others
};

}  // namespace speculant
