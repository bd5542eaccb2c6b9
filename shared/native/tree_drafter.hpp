// Drafts trees best first, by calibrated probability of acceptance.
//
// The value of a node is the probability that the target generates the whole path to it. The tree adds its most
// probable candidate, again and again, until the budget is spent or no candidate is probable enough. So it holds the
// most probable paths; with one child per node it is a chain. Among paths of similar probability the shorter one is the
// better choice. So candidates are ranked by probability, with a discount for every level below the first.
//
// For every node that joins the tree:
//   1. contexts.cpp collects the contexts that match its path, longest first, each with the counts of its successors.
//   2. calibration.cpp interpolates them: a context keeps a share 1 - b of the remaining probability mass and passes
//      the share b on to shorter contexts. Each kind of context (source, length, occurrences, distinct successors) has
//      its own b.
//   3. calibration.cpp adjusts every probability by the hit rate of its bin. A bin covers candidates of similar
//      probability with support from the same sources, and counts how many were right.
//   4. mixer/mixer.hpp adjusts all candidates of a position together, by the evidence of every context for each of
//      them.
//   5. The most probable candidates join the waiting children, and the best waiting child becomes the next node. The
//      probability of a path is the product of its candidates' probabilities, adjusted by the hit rate of drafted paths
//      of similar depth and product.
// When the target has generated a token, b and the bins learn from it before the token joins the sequence.
//
// An example without step 4: the graph has orders 1 and 2 of "the cat sat . the cat ran . the cat sat .". Nothing is
// learned yet, the sequence is "the cat", and the budget is 3 nodes.
//   - One context matches: "the cat" was followed by "sat" twice and by "ran" once. ("cat" occurs nowhere else, adds
//     nothing and is left out.) Contexts of two tokens begin with b = (2 * 0.6375 + 0.5) / (2 + 1) = 0.5917.
//   - P(sat) = (1 - b) * 2/3 = 0.2722, P(ran) = (1 - b) * 1/3 = 0.1361. The bins are empty and change neither.
//   - "sat" is node 1. After "cat sat" the only successor is ".", so this path has 0.2722 * (1 - b) * 2/2 = 0.1112.
//   - "ran" (0.1361) is node 2, and "." after "sat" is node 3. The root is the parent of nodes 1 and 2, and node 1 is
//     the parent of node 3.
//   - The target generates "sat". All but 0.0002 of its probability came from the context, so b of that kind becomes
//     (1.2746 + 0.5) / (2.9990 + 1) = 0.4438. The next "the cat" gives "sat" 0.3708.
// tests/congruence/test_worked_example.py drafts this example.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "calibration.hpp"
#include "contexts.hpp"
#include "draft.hpp"
#include "mixer/mixer.hpp"

namespace speculant {

/// Maximum number of nodes of a draft, and of children of a node: the upper bounds of `draft.k` and
/// `draft.max_branches`.
inline constexpr int kMaxNodes = 2048, kMaxBranches = 64;

/// Limits of a tree.
struct TreeShape {
  int budget;        // maximum number of nodes
  int max_depth;     // longest path
  int max_branches;  // maximum children of a node; 1 is a chain
};

/// Drafts trees, and learns from the tokens that the target generated. Reuses its buffers from one draft to the next;
/// calls must not overlap.
class TreeDrafter {
 public:
  /// Draft the highest-ranked paths after a sequence that ends in `contexts`; no path is less probable than
  /// `least_probability`. Calls `pause` every few nodes; the sources may change during a pause.
  void draft(const Sources& sources, const Calibration& calibration, const Contexts& contexts, TreeShape shape,
             double least_probability, const std::function<void()>& pause, Draft& draft);

  /// Add tokens to `session`, which is the session of `sources`, and move `contexts` to the new end. If `learns`, learn
  /// from each token first. `is_inside`: the token before the first one arrived together with it.
  void accept(Sources sources, Calibration& calibration, SessionHistory& session, Contexts& contexts,
              std::span<const Token> tokens, bool learns, bool is_inside);

  /// Learn from the tokens that followed the sequence of `sources`, which ended in `contexts` at that time. The session
  /// already holds these tokens. In a full history they have overwritten the oldest positions, which are no longer
  /// found.
  void learn(Sources sources, Calibration& calibration, Contexts contexts, std::span<const Token> tokens);

  /// Path probabilities of the latest draft before calibration; Calibration::learn_paths needs them.
  std::vector<double> estimates() const;

  /// Number of graph records read in search of the most frequent successors.
  std::int64_t num_read() const { return collector_.successors.num_read(); }

 private:
  struct Node {
    Token token;
    std::int32_t parent;
    int depth;
    double estimate, probability;  // of the path, before and after calibration
    double worth;                  // discount in the ranks of its children
    Contexts contexts;
  };
  /// A candidate for a node. Among equals, the one found earlier comes first.
  struct Child {
    double rank, estimate, probability;
    std::int32_t index;
    std::int32_t parent;
    Token token;
    std::array<std::uint32_t, kMaxGraphs> records;  // of the parent's contexts and the token; kNoChild if unknown
    bool operator<(const Child& other) const {
      return rank < other.rank || (rank == other.rank && index > other.index);
    }
  };
  void expand(const Sources& sources, const Calibration& calibration, std::int32_t index, int max_branches,
              std::size_t budget_left, double least_probability);
  void learn_from(const Sources& sources, Calibration& calibration, const Contexts& contexts, Token token,
                  bool is_inside);
  void rank(int most, const Node& parent, double least);

  ContextCollector collector_;
  Mixture mixture_;
  mixer::Mixer mixer_;
  std::vector<const Candidate*> best_;  // candidates of the mixture, best first
  Window window_;
  std::vector<Node> nodes_;      // the root first
  std::vector<Child> children_;  // ascending by rank; at most as many as the budget has left
  std::int32_t num_found_ = 0;
};

}  // namespace speculant
