// Drafts for a batch of sequences, for every strategy.
//
// Memory use, apart from the graph's file:
//   a sequence   4 KB, and 20 bytes per token; the number of tokens is rounded up to a power of two: 168 KB for 8,192
//                tokens. A sequence that is not learned adds 90 to 180 bytes for each slot of rows that it fills.
//   a tenant     20 bytes per learned token, rounded up in the same way: 21 MB for a million, 32 MB while they grow.
//                The first row of the target adds 2.4 MB for rows.
//   a graph      7.9 MB: the bins of its calibration
//   a thread     1.6 MB for each tree drafter: its cache of successors. The number of tree drafters is the largest
//                number that ever drafted at the same time.
// docs/sizing.md shows the first two on any machine.
#pragma once

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
#include "graph_drafter.hpp"
#include "sequence.hpp"

namespace speculant {

/// Method of a strategy: the most frequent successors in the graph, draws from their distribution, or best first from
/// all sources, calibrated. A table in Python assigns a method to each strategy.
enum class Method { kMostFrequent, kDrawn, kBestFirst };
inline constexpr const char* kMethods[] = {"most-frequent", "drawn", "best-first"};

/// Numbered as on the wire.
enum class Siblings : int { kNone = 0, kWithoutReplacement, kIndependent };

/// Settings of drafts.
struct DraftSettings {
  std::string strategy;  // its name in drafts
  Method method = Method::kBestFirst;
  bool fills_budget = false;  // ignores the least probability
  SequenceSettings sequence = {};
  int max_depth = 1, max_branches = 1;
  DistributionOptions distribution = {};
  bool is_coupled = false;
  Siblings siblings = Siblings::kNone;
  bool omits_proposals = false;

  bool is_from_graph() const { return method != Method::kBestFirst; }
};

/// One sequence of a batch: the request, and its draft.
struct SequenceDraft {
  std::shared_ptr<Sequence> sequence = {};
  int budget = 0;  // maximum number of nodes; at most kMaxNodes are drafted
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> position = {};  // of the first token drafted; none: the end of the sequence
  double least_probability = 0.0;              // of a path; nodes below it are not drafted
  std::vector<Token> accepted = {};            // taken first, if the sequence has `accepted_at` tokens
  std::uint64_t accepted_at = 0;
  Draft draft = {};
};

/// The settings for a StrategyOptions.
using ReadSettings = std::function<DraftSettings(const std::string& options)>;

/// Drafts from graphs and from the accepted tokens of sequences. Several threads may call it at once; locks are held
/// only for short parts of a call.
class Drafter {
 public:
  /// `vocabulary_size`: ids below it are tokens. `max_session_tokens`: maximum tokens of a sequence that drafts use.
  /// Trees of a batch are made on `num_threads` threads; the number does not change the trees.
  Drafter(Graphs graphs, Token vocabulary_size, std::shared_ptr<Calibration> calibration,
          std::int64_t max_session_tokens, int num_threads, ReadSettings read_settings)
      : graphs(std::move(graphs)),
        vocabulary_size(vocabulary_size),
        calibration(std::move(calibration)),
        max_session_tokens_(max_session_tokens),
        num_threads_(std::max(num_threads, 1)),
        read_settings_(std::move(read_settings)) {}

  Drafter(const Drafter&) = delete;

  /// Begin an empty sequence, with the settings of a request without options.
  std::shared_ptr<Sequence> open(std::shared_ptr<LearnedMemory> memory, bool learns);

  /// Add tokens to a sequence, part by part.
  void accept(Sequence& sequence, std::span<const Token> tokens, bool is_prompt);
  /// Add the next part to a sequence; the caller holds its lock.
  void accept_part(Sequence& sequence, Addition& addition);

  /// The settings for a StrategyOptions, cached.
  std::shared_ptr<const DraftSettings> settings_of(const std::string& options);

  /// Begin a temporary sequence that ends in these tokens, to draft once with `settings`.
  std::shared_ptr<Sequence> begin_after(std::span<const Token> tokens, const DraftSettings& settings);

  /// Draft for a batch; sequences record their drafts. Returns the distributions of the proposals. `max_entries`: most
  /// entries of these distributions; see draw_chains.
  Distributions draft(std::span<SequenceDraft* const> batch, const DraftSettings& settings, std::size_t max_entries);

  /// Schedule learning from sequences on another thread, while an engine verifies their drafts.
  void learn_soon(std::span<const std::shared_ptr<Sequence>> sequences);
  /// Do the scheduled learning now, and wait for learning that another thread has begun.
  void learn_rest();

  /// Number of graph records read in search of the most frequent successors, by finished calls.
  std::int64_t num_read();

  const Graphs graphs;
  const Token vocabulary_size;
  const std::shared_ptr<Calibration> calibration;

 private:
  Distributions draft_from_graph(std::span<SequenceDraft* const> batch, const DraftSettings& settings,
                                 std::size_t max_entries);
  void draft_trees(std::span<SequenceDraft* const> batch, const DraftSettings& settings);

  const std::int64_t max_session_tokens_;
  class Loan;
  void begin(const SequenceDraft& wanted, const DraftSettings& settings, TreeDrafter& tree);

  const int num_threads_;
  const ReadSettings read_settings_;
  std::mutex learning_;  // held while learning from one sequence; locks.hpp has the order of locks
  std::mutex mutex_;     // guards the members below; held for a few instructions
  std::unordered_map<std::string, std::shared_ptr<const DraftSettings>> settings_;
  std::vector<std::unique_ptr<TreeDrafter>> trees_;   // unused at present
  std::vector<std::shared_ptr<Sequence>> unlearned_;  // waiting for learning
  // Sequences whose learning is done, released later. The last owner of a memory may be Python, and we must not wait
  // for Python while it may wait for us.
  std::vector<std::shared_ptr<Sequence>> learned_;
  Background learner_{[this] { learn_rest(); }};  // last, because it uses the others
};

}  // namespace speculant
