#include "graph_drafter.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "random_stream.hpp"

namespace speculant {
namespace {

/// A count that is never 0, which a damaged file may hold.
std::int64_t positive_count(const Level& level, std::int64_t node) {
  return std::max<std::int64_t>(static_cast<std::uint32_t>(level.count(node)), 1);
}

/// What followed a context, no more than there are tokens; a damaged file could name a whole level.
Range bounded_children(const Trie& trie, Context context) {
  const Range range = trie.children(context);
  return {range.low, std::min<std::int64_t>(range.high, range.low + trie.vocabulary_size())};
}

/// The entry of a distribution at a quantile.
std::size_t draw(std::span<const float> probabilities, double quantile) {
  double cumulative = 0.0;
  for (std::size_t entry = 0; entry < probabilities.size(); ++entry) {
    cumulative += static_cast<double>(probabilities[entry]);
    if (cumulative > quantile) return entry;
  }
  return probabilities.size() - 1;  // rounding may leave the sum below 1: the rest belongs to the last token
}

/// The same among the entries that are left of it, of which there is one.
template <class IsLeft>
std::size_t draw_left(std::span<const float> probabilities, double quantile, IsLeft&& is_left) {
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
  return drawn;  // rounding may leave the sum too small: the rest belongs to the last one
}

/// The context of the same order after a token that followed `context`, or the longest known one.
Context context_after(const Trie& trie, Context context, Token token) {
  const std::int64_t child = trie.find_child(trie.level(context.order + 1), trie.children(context), token);
  return child < 0 ? Context{} : trie.shift(context, child);  // found, unless the file is damaged
}

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

// What a further child costs, where a first one costs 1. On text where q is far from p, which favours wide trees, 1
// brings 1 to 2 % more tokens and 3 brings 2.4 % fewer (docs/experiments.md, "trees that are drawn").
constexpr int kSiblingPrice = 2;
// Most children of a node that are counted: a bound for int, larger than any budget.
constexpr std::size_t kMostChildren = 1 << 20;

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
  TreeDraws(const DistributionOptions& options, const DrawnTreeShape& shape, Distributions& out)
      : options_(options), shape_(shape), out_(out) {}

  /// Draw one tree; return how many entries the distributions of its nodes have.
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
    masses_.read(*trie_, parent.context, options_);
    parent.q = masses_.append_to(out_, options_);
    parent.has_q = true;
    is_drawn_.resize(out_.tokens.size(), false);
    const auto size = static_cast<int>(std::min(parent.q.size(), kMostChildren));
    // A token that is certain is drawn once, however siblings are drawn.
    if (size < 2 || !shape_.is_independent) parent.capacity = std::min(parent.capacity, size);
  }

  void add_child(GraphDraft& sequence, std::size_t parent_index) {
    const double number = uniform(sequence.seed, sequence.position, kTreeStream + sequence.draft.size());
    const Distributions::Span q = nodes_[parent_index].q;
    const auto is_left = [&](std::size_t each) { return shape_.is_independent || !is_drawn_[q.first + each]; };
    const std::size_t entry = q.first + draw_left(out_.probabilities_of(q), number, is_left);
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
  Masses masses_;
  std::vector<Node> nodes_;
  std::vector<bool> is_drawn_;  // per entry of `out_`
};

}  // namespace

void Masses::read(const Trie& trie, Context context, const DistributionOptions& options) {
  level_ = &trie.level(context.order + 1);
  const Range children = bounded_children(trie, context);
  low_ = children.low;
  values_.clear();
  for (std::int64_t child = children.low; child < children.high; ++child) {
    values_.push_back(static_cast<double>(positive_count(*level_, child)));
  }
  total_ = std::accumulate(values_.begin(), values_.end(), 0.0);
  if (options.temperature != 1.0) temper(options.temperature);
}

/// Raise masses to the power of 1 / temperature, the largest one being 1.
void Masses::temper(double temperature) {
  total_ = 0.0;
  double largest = 0.0;
  for (double value : values_) largest = std::max(largest, value);
  if (!(largest > 0.0)) return;  // never, unless the file is damaged
  for (double& value : values_) {
    value = std::pow(value / largest, 1.0 / temperature);
    total_ += value;
  }
}

std::size_t Masses::max_entries(const DistributionOptions& options) const {
  const std::size_t size = values_.size();
  return options.max_candidates > 0 ? std::min(size, static_cast<std::size_t>(options.max_candidates)) : size;
}

Distributions::Span Masses::append_to(Distributions& out, const DistributionOptions& options) {
  const std::size_t first = out.tokens.size(), num_kept = max_entries(options);
  std::size_t last_kept = values_.size();  // the least of those that are kept
  double threshold = -1.0;
  const auto is_kept = [&](std::size_t index) {
    return values_[index] > threshold || (values_[index] == threshold && index <= last_kept);
  };
  if (num_kept < values_.size()) {
    const auto is_larger = [&](std::size_t left, std::size_t right) {
      return values_[left] > values_[right] || (values_[left] == values_[right] && left < right);
    };
    largest_.resize(num_kept);  // a heap, the least of them in front
    std::iota(largest_.begin(), largest_.end(), std::size_t{0});
    std::make_heap(largest_.begin(), largest_.end(), is_larger);
    for (std::size_t index = num_kept; index < values_.size(); ++index) {
      if (values_[index] <= values_[largest_.front()]) continue;
      std::pop_heap(largest_.begin(), largest_.end(), is_larger);
      largest_.back() = index;
      std::push_heap(largest_.begin(), largest_.end(), is_larger);
    }
    last_kept = largest_.front();
    threshold = values_[last_kept];
    total_ = 0.0;
    for (std::size_t index = 0; index < values_.size(); ++index) {
      if (is_kept(index)) total_ += values_[index];
    }
  }
  if (!(total_ > 0.0)) return {first, first};
  for (std::size_t index = 0; index < values_.size(); ++index) {
    if (!is_kept(index)) continue;
    const auto probability = static_cast<float>(values_[index] / total_);
    if (!(probability > 0.0f)) continue;
    out.tokens.push_back(static_cast<std::uint32_t>(level_->token(low_ + static_cast<std::int64_t>(index))));
    out.probabilities.push_back(probability);
  }
  return {first, out.tokens.size()};
}

void draft_greedy(std::span<GraphDraft> sequences) {
  for (GraphDraft& each : sequences) {
    const Trie& trie = *each.trie;
    while (std::cmp_less(each.draft.size(), each.budget) && each.context.order > 0) {
      const std::int64_t child = trie.argmax_child(each.context, trie.children(each.context));
      each.draft.add(each.draft.last(), trie.level(each.context.order + 1).token(child));
      each.context = trie.shift(each.context, child);
    }
  }
}

void draw_chains(std::span<GraphDraft> sequences, const DistributionOptions& options, bool is_coupled,
                 std::size_t max_entries, Distributions& out) {
  Masses masses;
  int deepest = 0;
  const std::size_t start = out.tokens.size();
  for (const GraphDraft& each : sequences) {
    deepest = std::max(deepest, each.budget);
    each.trie->prefetch_record(each.context);
  }
  for (int depth = 0; depth < deepest; ++depth) {
    const auto goes_on = [&](const GraphDraft& each) {
      return depth < each.budget && std::cmp_equal(each.draft.size(), depth) && each.context.order > 0;
    };
    bool is_going = false;
    for (GraphDraft& each : sequences) {
      if (!goes_on(each)) continue;
      each.context = each.trie->back_off(each.context);
      each.trie->prefetch_children(each.context);
    }
    for (GraphDraft& each : sequences) {
      if (!goes_on(each)) continue;
      masses.read(*each.trie, each.context, options);
      const std::size_t kept = out.tokens.size();
      if (max_entries > 0 && kept - start + masses.max_entries(options) > max_entries) continue;
      const Distributions::Span q = masses.append_to(out, options);
      if (q.size() == 0) continue;
      const std::uint64_t position = each.position + static_cast<std::uint64_t>(depth);
      const std::size_t entry =
          is_coupled ? draw_coupled(out, q, each.seed, position)
                     : q.first + draw(out.probabilities_of(q), uniform(each.seed, position, kProposalStream));
      const auto token = static_cast<Token>(out.tokens[entry]);
      if (max_entries > 0) {
        each.draft.add(each.draft.last(), token, q);
      } else {
        each.draft.add(each.draft.last(), token);
        out.resize(kept);
      }
      each.context = context_after(*each.trie, each.context, token);
      each.trie->prefetch_record(each.context);
      is_going = true;
    }
    if (!is_going) break;
  }
}

void draw_trees(std::span<GraphDraft> sequences, const DistributionOptions& options, const DrawnTreeShape& shape,
                std::size_t max_entries, Distributions& out) {
  TreeDraws draws(options, shape, out);
  for (GraphDraft& each : sequences) max_entries -= draws.draw(each, max_entries);
}

}  // namespace speculant
