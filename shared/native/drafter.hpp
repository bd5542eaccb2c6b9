// Drafts for a batch of sequences, by every strategy.
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

/// One sequence of a batch: what is wanted, and its draft.
struct SequenceDraft {
  std::shared_ptr<Sequence> sequence = {};
  int budget = 0;  // most nodes; more than kMaxNodes are never drafted
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> position = {};  // of the first token drafted; none: the end of the sequence
  double least_probability = 0.0;              // of a path; less probable ones are not drafted
  std::vector<Token> accepted = {};            // to be taken first, if the sequence still has so many tokens:
  std::uint64_t accepted_at = 0;
  Draft draft = {};
};

/// The settings that a StrategyOptions asks for.
using ReadSettings = std::function<DraftSettings(const std::string& options)>;

/// Drafts from graphs, and from what sequences accept. Calls may come from several threads at once; locks are held
/// for short parts of them.
class Drafter {
 public:
  /// `vocabulary_size`: ids below it are tokens. `max_session_tokens`: of one sequence that are looked back on.
  /// Trees of a batch are made on `num_threads` threads, and are the same on any number.
  Drafter(Graphs graphs, Token vocabulary_size, std::shared_ptr<Calibration> calibration,
          std::int64_t max_session_tokens, int num_threads, ReadSettings read_settings)
      : graphs(std::move(graphs)),
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

  /// Draft for a batch; drafts are noted in their sequences. Returns the distributions that their proposals are in.
  /// `max_entries`: most entries of these; see draw_chains.
  Distributions draft(std::span<SequenceDraft* const> batch, const DraftSettings& settings, std::size_t max_entries);

  /// Have sequences learned from soon, on another thread, while an engine verifies their drafts.
  void learn_soon(std::span<const std::shared_ptr<Sequence>> sequences);
  /// Learn from those at once; what another thread has begun is waited for.
  void learn_rest();

  /// Records of graphs that were read for the most frequent ones, by calls that have ended.
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
