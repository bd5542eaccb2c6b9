#include "graph_drafter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "random_stream.hpp"

namespace speculant {
namespace {

/// The entry of the token of the largest log q + noise, of equals the first.
std::size_t draw_coupled(const Distributions& all, Distributions::Span q, std::uint64_t seed, std::uint64_t position) {
  const std::uint64_t key = noise_key(seed, position);
  std::size_t best = q.first;
  double highest = -std::numeric_limits<double>::infinity();
  for (std::size_t entry = q.first; entry < q.last; ++entry) {
    const double value =
        std::log(static_cast<double>(all.probabilities[entry])) + gumbel_noise(noise_word(key, all.tokens[entry]));
    if (value > highest) best = entry, highest = value;
  }
  return best;
}

// Trees that `sampling` draws; tests/support holds the same, word for word, in Python.
//
// The shape. Every slot for a node has a price: a first child costs 1 more than its parent, and every further child
// kSiblingPrice more than the one before it. The cheapest slot is filled first, of equals that below the oldest node,
// until the budget is spent. The children of a node come in the order in which they were drawn, all with the same q.
// There is no slot where q has no other token, where no context is known, where there is no capacity for another q, and
// below a token that an older sibling has, which no rule can reach.
//
// Why that is exact. Whether a slot is filled is decided by what was drawn before it, never by the token that is drawn
// for it: no token is looked at and dropped. All that leads a rule to a node was drawn before that node's children. So,
// whatever it was, the next child is a fresh draw from q, or from what is left of q; and where there is none, the rule
// draws from the model.
//
// Numbers. Node j takes the number of (seed, position of the draft's first token, j). Every step of a sequence begins
// further on, so no number is taken twice, and what a rule has seen of one draft says nothing about the next one.

constexpr int kSiblingPrice = 2;  // what a further child costs, where a first one costs 1

/// The root, or a node that was drawn.
struct Node {
  Context context;
  int depth = 0, price = 1;
  int capacity = 0;  // children that it may still have
  bool has_q = false;
  Distributions::Span q = {};
};

/// Draws the trees of a batch.
class TreeDraws {
 public:
  TreeDraws(const Trie& trie, const DistributionOptions& options, const DrawnTreeShape& shape, Distributions& out)
      : trie_(trie), options_(options), shape_(shape), out_(out) {}

  /// Draw one tree; return how many entries the distributions of its nodes have.
  std::size_t draw(GraphDraft& draft, std::size_t max_entries) {
    nodes_.assign(1, {.context = draft.context});
    nodes_[0].capacity = draft.context.order > 0 && shape_.max_depth > 0 ? shape_.max_branches : 0;
    std::size_t entries = 0;
    while (std::ssize(draft.tokens) < draft.budget) {
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
      add_child(draft, static_cast<std::size_t>(cheapest - nodes_.begin()));
    }
    return entries;
  }

 private:
  void find_q(Node& parent) {
    masses_.read(trie_, parent.context, options_);
    parent.q = masses_.append_to(out_, options_);
    parent.has_q = true;
    is_drawn_.resize(out_.tokens.size(), false);
    const auto size = static_cast<int>(std::min<std::size_t>(parent.q.size(), 1 << 20));
    // A token that is certain is drawn once, however siblings are drawn.
    if (size < 2 || !shape_.is_independent) parent.capacity = std::min(parent.capacity, size);
  }

  void add_child(GraphDraft& draft, std::size_t parent_index) {
    const double number = uniform(draft.seed, draft.position, kTreeStream + draft.tokens.size());
    const Distributions::Span q = nodes_[parent_index].q;
    const auto is_left = [&](std::size_t each) { return shape_.is_independent || !is_drawn_[q.first + each]; };
    const std::size_t entry = q.first + draw_left(out_.probabilities_of(q), number, is_left);
    const auto token = static_cast<Token>(out_.tokens[entry]);
    draft.tokens.push_back(token);
    draft.parents.push_back(static_cast<std::int32_t>(parent_index));
    draft.proposals.push_back(q);
    Node child;
    {
      Node& parent = nodes_[parent_index];
      child.depth = parent.depth + 1;
      child.price = parent.price + 1;
      parent.price += kSiblingPrice;
      --parent.capacity;
      if (child.depth < shape_.max_depth && !is_drawn_[entry]) {
        child.context = context_after(trie_, parent.context, token);
        child.capacity = child.context.order > 0 ? shape_.max_branches : 0;
      }
    }
    is_drawn_[entry] = true;
    nodes_.push_back(child);
  }

  const Trie& trie_;
  const DistributionOptions& options_;
  const DrawnTreeShape& shape_;
  Distributions& out_;
  Masses masses_;
  std::vector<Node> nodes_;
  std::vector<bool> is_drawn_;  // per entry of `out_`
};

}  // namespace

std::size_t draft_greedy(const Trie& trie, Context context, std::span<Token> tokens) {
  std::size_t size = 0;
  for (; size < tokens.size() && context.order > 0; ++size) {
    const std::int64_t child = trie.argmax_child(context, trie.children(context));
    tokens[size] = trie.level(context.order + 1).token(child);
    context = trie.shift(context, child);
  }
  return size;
}

void draw_chains(const Trie& trie, std::span<GraphDraft> drafts, const DistributionOptions& options, bool is_coupled,
                 std::size_t max_entries, Distributions& out) {
  Masses masses;
  int deepest = 0;
  const std::size_t start = out.tokens.size();
  for (const GraphDraft& draft : drafts) {
    deepest = std::max(deepest, draft.budget);
    trie.prefetch_record(draft.context);
  }
  for (int depth = 0; depth < deepest; ++depth) {
    const auto goes_on = [&](const GraphDraft& draft) {
      return depth < draft.budget && std::ssize(draft.tokens) == depth && draft.context.order > 0;
    };
    bool is_going = false;
    for (GraphDraft& draft : drafts) {
      if (!goes_on(draft)) continue;
      draft.context = trie.back_off(draft.context);
      trie.prefetch_children(draft.context);
    }
    for (GraphDraft& draft : drafts) {
      if (!goes_on(draft)) continue;
      masses.read(trie, draft.context, options);
      const std::size_t kept = out.tokens.size();
      if (max_entries > 0 && kept - start + masses.max_entries(options) > max_entries) continue;
      const Distributions::Span q = masses.append_to(out, options);
      if (q.size() == 0) continue;
      const std::uint64_t position = draft.position + static_cast<std::uint64_t>(depth);
      const std::size_t entry =
          is_coupled ? draw_coupled(out, q, draft.seed, position)
                     : q.first + draw(out.probabilities_of(q), uniform(draft.seed, position, kProposalStream));
      const auto token = static_cast<Token>(out.tokens[entry]);
      draft.tokens.push_back(token);
      draft.parents.push_back(depth);
      if (max_entries > 0) {
        draft.proposals.push_back(q);
      } else {
        out.resize(kept);
      }
      draft.context = context_after(trie, draft.context, token);
      trie.prefetch_record(draft.context);
      is_going = true;
    }
    if (!is_going) break;
  }
}

void draw_trees(const Trie& trie, std::span<GraphDraft> drafts, const DistributionOptions& options,
                const DrawnTreeShape& shape, std::size_t max_entries, Distributions& out) {
  TreeDraws draws(trie, options, shape, out);
  for (GraphDraft& draft : drafts) max_entries -= draws.draw(draft, max_entries);
}

}  // namespace speculant
