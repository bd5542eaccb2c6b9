// Drafts for a batch of sequences, by every strategy that needs nothing but the graph and the calibrated sources.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "calibration.hpp"
#include "graph_drafter.hpp"
#include "sequence.hpp"
#include "tree_drafter.hpp"

namespace speculant {

/// Numbers of the wire. The last three are made elsewhere.
enum class Strategy : int { kGreedy = 1, kSampling, kAdaptive, kTree, kNasd, kSpecexec, kBeam };

/// Numbers of the wire.
enum class Siblings : int { kNone = 0, kWithoutReplacement, kIndependent };

/// How to draft.
struct DraftSettings {
  Strategy strategy = Strategy::kTree;
  SequenceSettings sequence = {};
  int max_depth = 1, max_branches = 1;
  double min_path_probability = 0.0;  // less probable paths are left out, where there are probabilities
  DistributionOptions distribution = {};
  bool is_coupled = false;
  Siblings siblings = Siblings::kNone;
  bool omits_proposals = false;
};

/// What is wanted for one sequence.
struct DraftRequest {
  Sequence* sequence;
  int budget;  // most nodes; more than kMaxNodes are never drafted
  std::uint64_t seed;
  std::uint64_t position;  // of the first token drafted
};

/// Drafts of a batch, one after another.
struct DraftBatch {
  std::vector<Draft> drafts;
  std::vector<std::vector<Distributions::Span>> proposals;  // per draft, of every node where its strategy has q
  Distributions distributions;
};

/// Draft by `greedy` or `sampling`. `max_entries`: most entries of all distributions together; see draw_chains.
DraftBatch draft_from_graph(const Trie& trie, std::vector<GraphDraft> wanted, const DraftSettings& settings,
                            std::size_t max_entries);

/// Drafts from one graph, and from what sequences accept. Calls must not overlap.
class Drafter {
 public:
  /// `vocabulary_size`: ids below it are tokens.
  Drafter(Trie trie, Token vocabulary_size, std::shared_ptr<Calibration> calibration)
      : trie(std::move(trie)), vocabulary_size(vocabulary_size), calibration(std::move(calibration)) {}

  /// A token, or kNoToken for what is not in the vocabulary.
  Token token_of(std::int64_t id) const {
    return 0 <= id && id < vocabulary_size ? static_cast<Token>(id) : kNoToken;
  }

  void accept(Sequence& sequence, std::span<const Token> tokens, bool is_prompt) {
    sequence.accept(trees_, trie, *calibration, tokens, is_prompt);
  }

  /// Draft for a batch; drafts are noted in their sequences. `max_entries`: see draft_from_graph.
  DraftBatch draft(std::span<const DraftRequest> requests, const DraftSettings& settings, std::size_t max_entries);

  /// What may follow a path from the end of a sequence, best first.
  void propose(const Sequence& sequence, std::span<const Token> path, std::size_t limit, std::vector<Token>& tokens,
               std::vector<double>& probabilities) {
    trees_.propose(sequence.sources(trie), *calibration, sequence.context, path, limit, tokens, probabilities);
  }

  const Trie trie;
  const Token vocabulary_size;
  const std::shared_ptr<Calibration> calibration;

 private:
  TreeDrafter trees_;
};

}  // namespace speculant
