#include "tree_drafter.hpp"

#include <algorithm>
#include <utility>

#include "mixer/training.hpp"

namespace speculant {
namespace {

// Nodes between pauses, in which waiting threads get the locks. A node takes about 2 us, so they wait for about an
// eighth of a millisecond. Pauses do not change a tree (tests/unit/shared/test_locks.py).
constexpr std::int32_t kNodesBetweenPauses = 64;
// Maximum number of records that one tree may read in search of the most frequent successors; cached contexts do not
// count. The limit keeps the time on an unchecked file to about a millisecond. Trees of 64 nodes from graphs of two
// million tokens read at most 70,000.
constexpr std::int64_t kMostRead = 1 << 19;

// Discount per level below the first in the ranks of paths: 0.4 % more tokens per step. The probabilities in drafts do
// not include it (docs/experiments.md, "ranks of paths").
constexpr double kLevelWorth = 0.95;
// Least probability for which the neural model runs: the path's probability times the share that longer contexts leave.
// With 0.01 a tree takes a third longer and gains 0.1 % (docs/experiments.md, "a neural model").
constexpr double kLeastAsked = 0.03;

}  // namespace

/// Rank the candidates that may be drafted: the `most` most probable ones, and among equals the one found first. Skip
/// candidates whose paths after `parent` rank no higher than `least`.
void TreeDrafter::rank(int most, const Node& parent, double least) {
  best_.clear();
  for (const Candidate& candidate : mixture_.candidates) {
    const double probability = candidate.probability;
    if (!(probability > kSmallestCandidate)) continue;
    if (parent.estimate * std::min(probability, 1.0) * parent.worth <= least) continue;
    if (std::ssize(best_) == most) {
      if (probability <= best_.back()->probability) continue;
      best_.pop_back();
    }
    auto slot = best_.end();
    while (slot != best_.begin() && (*(slot - 1))->probability < probability) --slot;
    best_.insert(slot, &candidate);
  }
}

std::vector<double> TreeDrafter::estimates() const {
  std::vector<double> estimates;
  for (std::size_t node = 1; node < nodes_.size(); ++node) estimates.push_back(nodes_[node].estimate);
  return estimates;
}

/// Add the most probable successors of a node to the waiting children. Keep at most as many children as the budget has
/// left.
void TreeDrafter::expand(const Sources& sources, const Calibration& calibration, std::int32_t index, int max_branches,
                         std::size_t budget_left, double least_probability) {
  const Node& node = nodes_[static_cast<std::size_t>(index)];
  auto slot = static_cast<std::size_t>(kLookBack + node.depth);
  const Token* end = window_.data() + slot;
  for (std::int32_t each = index; each > 0; each = nodes_[static_cast<std::size_t>(each)].parent) {
    window_[--slot] = nodes_[static_cast<std::size_t>(each)].token;
  }
  const auto& found = collector_.collect(sources, calibration, end, node.contexts, kLeastAsked / node.estimate);
  calibration.interpolate(found, index > 0, mixture_);
  calibration.calibrate(mixture_);
  if (const auto& weights = calibration.mixer_weights; weights && sources.has(Source::kNeural)) {
    mixer_.mix(*weights, sources, found, index > 0, node.estimate, mixture_);
  }
  const auto is_full = [&] { return children_.size() == budget_left; };
  rank(max_branches, node, is_full() ? children_.front().rank : -1.0);
  for (const Candidate* candidate : best_) {
    const double estimate = node.estimate * std::min(candidate->probability, 1.0);
    const double probability = std::min(calibration.of_path(node.depth + 1, estimate), node.probability);
    if (probability < least_probability) continue;
    Child child{.rank = estimate * node.worth,
                .estimate = estimate,
                .probability = probability,
                .index = num_found_++,
                .parent = index,
                .token = candidate->token,
                .records = {}};
    for (std::size_t graph = 0; graph < sources.graphs.size(); ++graph) {
      const bool is_longest = candidate->orders[graph] == node.contexts[graph].order;
      child.records[graph] = is_longest ? candidate->children[graph] : Successor::kNoChild;
    }
    const auto place = std::lower_bound(children_.begin(), children_.end(), child);
    if (!is_full()) {
      children_.insert(place, child);
    } else if (place != children_.begin()) {
      std::move(children_.begin() + 1, place, children_.begin());  // overwrites the worst one
      *(place - 1) = child;
    }
  }
}

void TreeDrafter::draft(const Sources& sources, const Calibration& calibration, const Contexts& contexts,
                        TreeShape shape, double least_probability, const std::function<void()>& pause, Draft& draft) {
  sources.session.fill(window_);
  collector_.successors.allow(kMostRead);
  children_.clear();
  nodes_.assign(1, {0, 0, 0, 1.0, 1.0, 1.0, contexts});
  num_found_ = 0;
  draft.clear();
  for (std::int32_t current = 0; current < shape.budget; ++current) {
    if (current % kNodesBetweenPauses == kNodesBetweenPauses - 1) pause();
    if (nodes_.back().depth < shape.max_depth) {
      const auto budget_left = static_cast<std::size_t>(shape.budget - current);
      expand(sources, calibration, current, shape.max_branches, budget_left, least_probability);
    }
    if (children_.empty()) break;
    const Child child = children_.back();
    children_.pop_back();
    const Node& parent = nodes_[static_cast<std::size_t>(child.parent)];
    Contexts next{};
    for (std::size_t graph = 0; graph < sources.graphs.size(); ++graph) {
      if (!sources.has_graph(graph)) continue;
      const Trie& trie = sources.graphs[graph];
      const Context& context = parent.contexts[graph];
      const std::uint32_t record = child.records[graph];
      const bool is_known = context.order > 0 && record != Successor::kNoChild;
      next[graph] = is_known ? trie.extend_to(context, record) : trie.extend(context, child.token);
    }
    const double worth = parent.worth * kLevelWorth;
    nodes_.push_back({child.token, child.parent, parent.depth + 1, child.estimate, child.probability, worth, next});
    draft.add(child.parent, child.token, child.probability);
  }
}

/// Learn from the token that followed the window.
void TreeDrafter::learn_from(const Sources& sources, Calibration& calibration, const Contexts& contexts, Token token,
                             bool is_inside) {
  const auto& found = collector_.collect(sources, calibration, window_.data() + kLookBack, contexts);
  calibration.interpolate(found, is_inside, mixture_);
  if (calibration.examples) {
    Mixture calibrated = mixture_;
    calibration.calibrate(calibrated);
    if (mixer::Observer observer; observer.look(sources, found, calibrated, is_inside, 1.0)) {
      calibration.examples->emplace_back(observer.features(), observer.place_of(calibrated, token));
    }
  }
  calibration.learn(sources.graphs, found, mixture_, token);
}

void TreeDrafter::accept(Sources sources, Calibration& calibration, SessionHistory& session, Contexts& contexts,
                         std::span<const Token> tokens, bool learns, bool is_inside) {
  // Keep the contexts up to date even while the corpus is not used: a later request may use it.
  const bool is_long = !learns && std::ssize(tokens) > sources.graphs.max_order();
  session.reserve(std::ssize(tokens));
  session.fill(window_);
  collector_.successors.allow(kMostRead);
  for (Token token : tokens) {
    if (learns) learn_from(sources, calibration, contexts, token, is_inside);
    session.push(token, window_);
    ++sources.session_size;
    if (!is_long) contexts = sources.graphs.extend(contexts, token);
    is_inside = true;
  }
  if (is_long) contexts = sources.graphs.match(tokens);
}

void TreeDrafter::learn(Sources sources, Calibration& calibration, Contexts contexts, std::span<const Token> tokens) {
  collector_.successors.allow(kMostRead);
  bool is_inside = false;
  for (Token token : tokens) {
    sources.session.fill(window_, sources.session_size);
    learn_from(sources, calibration, contexts, token, is_inside);
    contexts = sources.graphs.extend(contexts, token);
    ++sources.session_size, is_inside = true;
  }
}

}  // namespace speculant
