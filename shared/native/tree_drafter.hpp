// Drafts by calibrated probability of acceptance: best first.
//
// A node of a draft is worth the probability that the target writes the whole path to it. The tree grows by its most
// probable node until the budget is spent, or no node is left that is probable enough, so its nodes are the most
// probable paths of all; with one child a node it is a chain. Of paths about as probable
// the shorter one is the better choice: ranks are probabilities, less a discount for every level below the first.
//
// For every node that joins the tree:
//   1. contexts.cpp collects the contexts that match its path, longest first, each with counts of its successors.
//   2. calibration.cpp interpolates them: a context keeps the share 1 - b of what is left and passes b on to shorter
//      ones. Each kind of context (source, length, occurrences, distinct successors) has a b of its own.
//   3. calibration.cpp moves every probability by the hit rate of its bin: of the candidates about as probable and
//      supported by the same sources, how many were right?
//   4. mixer/mixer.hpp moves the candidates of a position together, by what every context says about each of them.
//   5. The most probable candidates join the children that wait. The best of all that wait becomes the next node. A
//   path
//      states the product of its candidates' probabilities, moved by the hit rate of drafted paths of such a depth and
//      product.
// When the target has written a token, b and the bins learn from it before the token joins the sequence.
//
// An example, without 4: a graph of orders 1 and 2 of "the cat sat . the cat ran . the cat sat .", nothing learned yet,
// the sequence "the cat", a tree of 3 nodes.
//   - One context matches: "the cat" was followed by "sat" twice and by "ran" once. ("cat" occurs nowhere else, adds
//     nothing and is left out.) Contexts of two tokens begin with b = (2 * 0.6375 + 0.5) / (2 + 1) = 0.5917.
//   - P(sat) = (1 - b) * 2/3 = 0.2722, P(ran) = (1 - b) * 1/3 = 0.1361. The bins are empty and change neither.
//   - "sat" is node 1. After "cat sat" there is only ".": its path has 0.2722 * (1 - b) * 2/2 = 0.1112.
//   - "ran" (0.1361) is node 2, "." after "sat" node 3. The root is the parent of two, node 1 that of the last.
//   - The target writes "sat". All but 0.0002 of its probability came from the context, so b of that kind becomes
//     (1.2746 + 0.5) / (2.9990 + 1) = 0.4438, and the next "the cat" gives "sat" 0.3708.
// tests/congruence/test_worked_example.py drafts it.
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

/// Most nodes of a draft, and most children of a node: the upper bounds of `draft.k` and `draft.max_branches`.
inline constexpr int kMaxNodes = 2048, kMaxBranches = 64;

/// What bounds a tree.
struct TreeShape {
  int budget;        // most nodes
  int max_depth;     // longest path
  int max_branches;  // most children of a node; 1 is a chain
};

/// Makes drafts, and learns from what became of them. Keeps its memory from one draft to the next; calls must not
/// overlap.
class TreeDrafter {
 public:
  /// Draft the paths of highest rank after a sequence that ends in `contexts`, none less probable than
  /// `least_probability`. `pause` is called after every few nodes: what is drafted from may change meanwhile.
  void draft(const Sources& sources, const Calibration& calibration, const Contexts& contexts, TreeShape shape,
             double least_probability, const std::function<void()>& pause, Draft& draft);

  /// Add tokens to `session`, which is that of `sources`, and move `contexts` to the new end; learn from each one
  /// first, if asked to. `is_inside`: the token before the first one came with it.
  void accept(Sources sources, Calibration& calibration, SessionHistory& session, Contexts& contexts,
              std::span<const Token> tokens, bool learns, bool is_inside);

  /// Learn from the tokens that followed the sequence of `sources`, which ended in `contexts` then. The session holds
  /// them already. In a full history the oldest positions, which they have overwritten, are not found any more.
  void learn(Sources sources, Calibration& calibration, Contexts contexts, std::span<const Token> tokens);

  /// What the probabilities of the latest draft were before its paths were calibrated, which is learned from them.
  std::vector<double> estimates() const;

  /// Records of graphs that were read for the most frequent ones.
  std::int64_t num_read() const { return collector_.successors.num_read(); }

 private:
  struct Node {
    Token token;
    std::int32_t parent;
    int depth;
    double estimate, probability;  // of the path, before and after it was calibrated
    double worth;                  // of its children's level in ranks
    Contexts contexts;
  };
  /// What may become a node. Of equals the one found earlier comes first.
  struct Child {
    double rank, estimate, probability;
    std::int32_t index;
    std::int32_t parent;
    Token token;
    std::array<std::uint32_t, kMaxGraphs> records;  // of the parent's contexts and the token, kNoChild if not known
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
  std::vector<const Candidate*> best_;  // of the mixture, best first
  Window window_;
  std::vector<Node> nodes_;      // the root first
  std::vector<Child> children_;  // in order, the best last; no more than may still become nodes
  std::int32_t num_found_ = 0;
};

}  // namespace speculant
