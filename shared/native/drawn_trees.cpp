#include <algorithm>
#include <utility>

#include "graph_drafter.hpp"
#include "random_stream.hpp"

namespace speculant {
namespace {

/// The entry of a distribution at a quantile among the remaining entries; at least one remains.
template <class IsLeft>
std::size_t sample_masked(std::span<const float> probabilities, double quantile, IsLeft&& is_left) {
  double left = 0.0, cumulative = 0.0;
  for (std::size_t entry = 0; entry < probabilities.size(); ++entry) {
    if (is_left(entry)) left += static_cast<double>(probabilities[entry]);
  }
  std::size_t drawn = 0;
  for (std::size_t entry = 0; entry < probabilities.size(); ++entry) {
    if (!is_left(entry)) continue;
    cumulative += static_cast<double>(probabilities[entry]);
    drawn = entry;
    if (cumulative > quantile * left) break;
  }
  return drawn;  // rounding may leave the sum too small; the rest belongs to the last entry
}

// Trees drawn by `sampling`; tests/support has the same algorithm in Python.
//
// The shape. Every slot for a node has a price: a first child costs 1 more than its parent, and each further child
// costs kSiblingPrice more than the one before it. The cheapest slot is filled first, among equals the one below the
// oldest node, until the budget is spent. The children of a node come in the order in which they were drawn, all with
// the same q. There is no slot if q has no other token, if no context is known, or if there is no capacity for another
// q. There is also none below a token that an older sibling has, because no rule can reach it.
//
// Why this is exact. The decision to fill a slot depends on earlier draws, never on the token drawn for it: no token is
// dropped after it was seen. All draws that lead a rule to a node were made before the node's children were drawn. So
// the next child is always a fresh draw from q, or from the rest of q. If there is no next child, the rule draws from
// the model.
//
// Random numbers. Node j uses the number of (seed, position of the draft's first token, j). Every step of a sequence
// begins at a later position, so no number is used twice, and one draft reveals nothing about the next.

// Price of a further child, relative to a first one. On text where q is far from p, which favours wide trees, 1 gives 1
// to 2 % more tokens and 3 gives 2.4 % fewer (docs/experiments.md, "trees that are drawn").
constexpr int kSiblingPrice = 2;
// Maximum number of counted children of a node: within an int, and larger than any budget.
constexpr std::size_t kMostChildren = 1 << 20;

/// The root, or a drawn node.
struct Node {
  Context context;
  int depth = 0, price = 1;
  int capacity = 0;  // further children that it may have
  bool has_q = false;
  Distributions::Span q = {};
};

/// Draws the trees of a batch.
class TreeDraws {
 public:
  TreeDraws(const DistributionOptions& options, const DrawnTreeShape& shape, Distributions& out)
      : options_(options), shape_(shape), out_(out) {}

  /// Draw one tree; return the number of entries in the distributions of its nodes.
  std::size_t draw(GraphDraft& sequence, std::size_t max_entries) {
    trie_ = sequence.trie;
    nodes_.assign(1, {.context = sequence.context});
    nodes_[0].capacity = sequence.context.order > 0 && shape_.max_depth > 0 ? shape_.max_branches : 0;
    std::size_t entries = 0;
    while (std::cmp_less(sequence.draft.size(), sequence.budget)) {
      const auto cheapest = std::min_element(nodes_.begin(), nodes_.end(), [](const Node& left, const Node& right) {
        return left.capacity > 0 && (right.capacity == 0 || left.price < right.price);
      });
      if (cheapest->capacity == 0) break;
      Node& parent = *cheapest;
      if (!parent.has_q) {
        find_q(parent);
        if (parent.q.size() == 0) continue;
      }
      if (entries + parent.q.size() > max_entries) {
        parent.capacity = 0;
        continue;
      }
      entries += parent.q.size();
      add_child(sequence, static_cast<std::size_t>(cheapest - nodes_.begin()));
    }
    return entries;
  }

 private:
  void find_q(Node& parent) {
    weights_.read(*trie_, parent.context, options_);
    parent.q = weights_.append_to(out_, options_);
    parent.has_q = true;
    is_drawn_.resize(out_.tokens.size(), false);
    const auto size = static_cast<int>(std::min(parent.q.size(), kMostChildren));
    // A point mass is drawn once, for any kind of siblings.
    if (size < 2 || !shape_.is_independent) parent.capacity = std::min(parent.capacity, size);
  }

  void add_child(GraphDraft& sequence, std::size_t parent_index) {
    const double number = uniform(sequence.seed, sequence.position, kTreeStream + sequence.draft.size());
    const Distributions::Span q = nodes_[parent_index].q;
    const auto is_left = [&](std::size_t each) { return shape_.is_independent || !is_drawn_[q.first + each]; };
    const std::size_t entry = q.first + sample_masked(out_.probabilities_of(q), number, is_left);
    const auto token = static_cast<Token>(out_.tokens[entry]);
    sequence.draft.add(static_cast<std::int32_t>(parent_index), token, q);
    Node child;
    {
      Node& parent = nodes_[parent_index];
      child.depth = parent.depth + 1;
      child.price = parent.price + 1;
      parent.price += kSiblingPrice;
      --parent.capacity;
      if (child.depth < shape_.max_depth && !is_drawn_[entry]) {
        child.context = context_after(*trie_, parent.context, token);
        child.capacity = child.context.order > 0 ? shape_.max_branches : 0;
      }
    }
    is_drawn_[entry] = true;
    nodes_.push_back(child);
  }

  const Trie* trie_ = nullptr;  // of the sequence
  const DistributionOptions& options_;
  const DrawnTreeShape& shape_;
  Distributions& out_;
  Weights weights_;
  std::vector<Node> nodes_;
  std::vector<bool> is_drawn_;  // per entry of `out_`
};

}  // namespace

void draw_trees(std::span<GraphDraft> sequences, const DistributionOptions& options, const DrawnTreeShape& shape,
                std::size_t max_entries, Distributions& out) {
  TreeDraws draws(options, shape, out);
  for (GraphDraft& each : sequences) max_entries -= draws.draw(each, max_entries);
}

}  // namespace speculant
