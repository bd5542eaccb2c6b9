#include "drafter.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>
#include <utility>

#include "worker_pool.hpp"

namespace speculant {
namespace {

// Options whose settings are cached. Clients may send any options, so the cache is bounded. A guess: a client sends the
// same options again and again.
constexpr std::size_t kMaxSettings = 256;
// Least number of requested nodes for which threads help. Fewer nodes are drafted before another thread has woken up,
// which takes 30 to 80 us. A node of a tree takes 2 us, and twice as long after a pause with cold caches. A drawn node
// takes 0.3 us and a most frequent one 0.1 us, so their drafts are never divided.
constexpr int kSpreadNodes = 48;

int budget_of(const SequenceDraft& wanted) { return std::clamp(wanted.budget, 0, kMaxNodes); }

}  // namespace

/// A tree drafter for the exclusive use of this call.
class Drafter::Loan {
 public:
  explicit Loan(Drafter& drafter) : drafter_(drafter) {
    std::lock_guard guard(drafter.mutex_);
    if (drafter.trees_.empty()) return;
    tree_ = std::move(drafter.trees_.back());
    drafter.trees_.pop_back();
  }
  Loan(const Loan&) = delete;
  ~Loan() {
    if (!tree_) return;
    std::lock_guard guard(drafter_.mutex_);
    drafter_.trees_.push_back(std::move(tree_));
  }
  TreeDrafter& operator*() {
    if (!tree_) tree_ = std::make_unique<TreeDrafter>();
    return *tree_;
  }

 private:
  Drafter& drafter_;
  std::unique_ptr<TreeDrafter> tree_;
};

void Drafter::accept(Sequence& sequence, std::span<const Token> tokens, bool is_prompt) {
  Addition addition{tokens, is_prompt};
  while (!addition.tokens.empty()) {
    Exclusive hold(sequence.lock);
    accept_part(sequence, addition);
  }
}

void Drafter::learn_soon(std::span<const std::shared_ptr<Sequence>> sequences) {
  if (sequences.empty()) return;
  std::vector<std::shared_ptr<Sequence>> learned;  // may hold the last reference to some
  {
    std::lock_guard guard(mutex_);
    unlearned_.insert(unlearned_.end(), sequences.begin(), sequences.end());
    learned.swap(learned_);
  }
  learner_.wake();
}

void Drafter::learn_rest() {
  Loan tree(*this);
  for (;;) {
    std::lock_guard turn(learning_);
    std::shared_ptr<Sequence> sequence;
    {
      std::lock_guard guard(mutex_);
      if (unlearned_.empty()) return;
      sequence = std::move(unlearned_.back());
      unlearned_.pop_back();
    }
    {
      Exclusive hold(sequence->lock);
      sequence->learn(*tree, *calibration);
    }
    std::lock_guard guard(mutex_);
    learned_.push_back(std::move(sequence));
  }
}

/// Take the accepted tokens of a requested draft, and use its settings from now on. The caller holds the sequence's
/// lock.
void Drafter::begin(const SequenceDraft& wanted, const DraftSettings& settings, TreeDrafter& tree) {
  Sequence& sequence = *wanted.sequence;
  if (!wanted.accepted.empty() && std::cmp_equal(sequence.size(), wanted.accepted_at)) {
    Addition addition{.tokens = wanted.accepted, .is_prompt = false, .may_wait = true};
    sequence.accept(tree, *calibration, addition);
  }
  sequence.adopt(settings.sequence);
}

std::int64_t Drafter::num_read() {
  std::lock_guard guard(mutex_);
  return std::accumulate(trees_.begin(), trees_.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& tree) { return sum + tree->num_read(); });
}

void Drafter::accept_part(Sequence& sequence, Addition& addition) {
  Loan tree(*this);
  sequence.accept(*tree, *calibration, addition);
}

std::shared_ptr<Sequence> Drafter::open(std::shared_ptr<LearnedMemory> memory, bool learns) {
  Graphs all = [&] { return Shared(memory->lock), graphs.with(memory->graphs); }();
  auto sequence = std::make_shared<Sequence>(std::move(memory), std::move(all), max_session_tokens_, learns);
  sequence->settings = settings_of("")->sequence;
  return sequence;
}

std::shared_ptr<Sequence> Drafter::begin_after(std::span<const Token> tokens, const DraftSettings& settings) {
  auto sequence = open(std::make_shared<LearnedMemory>(1), false);
  if (settings.is_from_graph())
    tokens = tokens.last(std::min(tokens.size(), static_cast<std::size_t>(graphs.max_order())));
  accept(*sequence, tokens, true);
  return sequence;
}

std::shared_ptr<const DraftSettings> Drafter::settings_of(const std::string& options) {
  {
    std::lock_guard guard(mutex_);
    const auto known = settings_.find(options);
    if (known != settings_.end()) return known->second;
  }
  auto found = std::make_shared<const DraftSettings>(read_settings_(options));
  std::lock_guard guard(mutex_);
  if (settings_.size() >= kMaxSettings) settings_.clear();
  return settings_.insert_or_assign(options, std::move(found)).first->second;
}

Distributions Drafter::draft(std::span<SequenceDraft* const> batch, const DraftSettings& settings,
                             std::size_t max_entries) {
  Distributions distributions;
  if (settings.is_from_graph()) {
    distributions = draft_from_graph(batch, settings, max_entries);
  } else {
    draft_trees(batch, settings);
  }
  for (SequenceDraft* each : batch) each->draft.ended_early = std::cmp_less(each->draft.size(), budget_of(*each));
  return distributions;
}

/// Draft by the methods that use only the graph.
Distributions Drafter::draft_from_graph(std::span<SequenceDraft* const> batch, const DraftSettings& settings,
                                        std::size_t max_entries) {
  Distributions distributions;
  std::vector<GraphDraft> wanted;
  Loan tree(*this);
  for (const SequenceDraft* each : batch) {
    Sequence& sequence = *each->sequence;
    Exclusive hold(sequence.lock);
    begin(*each, settings, *tree);
    // Only the graph with the longest match drafts, because q is the distribution after one context.
    const std::size_t graph = sequence.graphs.longest_named(sequence.contexts);
    wanted.push_back({.trie = &sequence.graphs[graph],
                      .context = sequence.contexts[graph],
                      .budget = budget_of(*each),
                      .seed = each->seed,
                      .position = each->position.value_or(static_cast<std::uint64_t>(sequence.size()))});
  }
  if (settings.method == Method::kMostFrequent) {
    draft_greedy(wanted);
  } else if (settings.siblings == Siblings::kNone || settings.omits_proposals) {
    // Without q no acceptance rule can use siblings.
    draw_chains(wanted, settings.distribution, settings.is_coupled, settings.omits_proposals ? 0 : max_entries,
                distributions);
  } else {
    const DrawnTreeShape shape{settings.siblings == Siblings::kIndependent, settings.max_branches, settings.max_depth};
    draw_trees(wanted, settings.distribution, shape, max_entries, distributions);
  }
  for (std::size_t index = 0; index < batch.size(); ++index) {
    batch[index]->draft = std::move(wanted[index].draft);
    Exclusive hold(batch[index]->sequence->lock);
    batch[index]->sequence->note(batch[index]->draft);
  }
  return distributions;
}

void Drafter::draft_trees(std::span<SequenceDraft* const> batch, const DraftSettings& settings) {
  int num_nodes = 0;
  for (const SequenceDraft* each : batch) num_nodes += budget_of(*each);
  const int num_threads = num_nodes < kSpreadNodes ? 1 : num_threads_;
  std::deque<Loan> trees;
  for (int each = 0; each < num_threads; ++each) trees.emplace_back(*this);
  parallel_for(num_threads, batch.size(), [&](std::size_t worker, std::size_t index) {
    SequenceDraft& wanted = *batch[index];
    Sequence& sequence = *wanted.sequence;
    const TreeShape shape{budget_of(wanted), std::min(settings.max_depth, kMaxDepth),
                          std::min(settings.max_branches, kMaxBranches)};
    const double least = settings.fills_budget ? 0.0 : wanted.least_probability;
    Exclusive hold(sequence.lock);
    begin(wanted, settings, *trees[worker]);
    Shared graph(calibration->lock);
    Shared tenant(sequence.memory->lock);
    const auto pause = [&] {
      tenant.give(), graph.give(), hold.give();
      hold.take(), graph.take(), tenant.take();
    };
    const std::int64_t size = sequence.size();
    (*trees[worker]).draft(sequence.sources(), *calibration, sequence.contexts, shape, least, pause, wanted.draft);
    // If the sequence has grown meanwhile, learning can't use this draft.
    if (sequence.size() == size) sequence.note(wanted.draft, (*trees[worker]).estimates());
  });
}

}  // namespace speculant
