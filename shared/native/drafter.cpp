#include "drafter.hpp"

#include <algorithm>
#include <numeric>

#include "worker_pool.hpp"

namespace speculant {
namespace {

constexpr std::size_t kMaxSettings = 256;  // clients may ask for anything, so nothing is kept for ever
// Nodes of trees that are asked for at least where threads help: fewer are drafted before another thread has woken up,
// which takes 30 to 80 us. A node of a tree takes 2 us; one that is drawn 0.3 and one of `greedy` 0.1, so those are
// never divided.
constexpr int kSpreadNodes = 128;

int budget_of(const DraftRequest& request) { return std::clamp(request.budget, 0, kMaxNodes); }

}  // namespace

std::shared_ptr<Sequence> Drafter::open(std::shared_ptr<LearnedMemory> memory, bool learns, std::vector<double> costs) {
  auto sequence = std::make_shared<Sequence>(std::move(memory), max_session_tokens_, learns, std::move(costs));
  sequence->settings = settings_of("")->sequence;
  return sequence;
}

std::shared_ptr<Sequence> Drafter::begin_after(std::span<const Token> tokens) {
  auto sequence = open(std::make_shared<LearnedMemory>(1), false, {});
  accept(*sequence, tokens, true);
  return sequence;
}

std::shared_ptr<const DraftSettings> Drafter::settings_of(const std::string& options) {
  const auto known = settings_.find(options);
  if (known != settings_.end()) return known->second;
  auto found = std::make_shared<const DraftSettings>(read_settings_(options));
  if (settings_.size() >= kMaxSettings) settings_.clear();
  return settings_.insert_or_assign(options, std::move(found)).first->second;
}

DraftBatch Drafter::draft(std::span<const DraftRequest> requests, const DraftSettings& settings,
                          std::size_t max_entries) {
  for (const DraftRequest& request : requests) {
    request.sequence->settings = settings.sequence;
    request.sequence->is_calibrated |= settings.sequence.is_calibrated;
  }
  DraftBatch batch;
  batch.drafts.resize(requests.size());
  batch.proposals.resize(requests.size());
  if (settings.is_from_graph()) {
    draft_from_graph(requests, settings, max_entries, batch);
  } else {
    draft_trees(requests, settings, batch);
  }
  for (std::size_t index = 0; index < requests.size(); ++index) {
    batch.ended_early.push_back(std::ssize(batch.drafts[index].tokens) < budget_of(requests[index]));
    requests[index].sequence->note(batch.drafts[index]);
  }
  return batch;
}

/// Draft by `greedy` or `sampling`.
void Drafter::draft_from_graph(std::span<const DraftRequest> requests, const DraftSettings& settings,
                               std::size_t max_entries, DraftBatch& batch) {
  std::vector<GraphDraft> wanted;
  for (const DraftRequest& request : requests) {
    wanted.push_back({.context = request.sequence->context,
                      .budget = budget_of(request),
                      .seed = request.seed,
                      .position = request.position});
  }
  if (settings.strategy == Strategy::kGreedy) {
    for (GraphDraft& each : wanted) {
      each.tokens.resize(static_cast<std::size_t>(each.budget));
      each.tokens.resize(draft_greedy(trie, each.context, each.tokens));
      each.parents.resize(each.tokens.size());
      std::iota(each.parents.begin(), each.parents.end(), 0);
    }
  } else if (settings.siblings == Siblings::kNone || settings.omits_proposals) {
    // Without q no rule has any use for siblings.
    draw_chains(trie, wanted, settings.distribution, settings.is_coupled, settings.omits_proposals ? 0 : max_entries,
                batch.distributions);
  } else {
    const DrawnTreeShape shape{settings.siblings == Siblings::kIndependent, settings.max_branches, settings.max_depth};
    draw_trees(trie, wanted, settings.distribution, shape, max_entries, batch.distributions);
  }
  for (std::size_t index = 0; index < wanted.size(); ++index) {
    batch.drafts[index] = {std::move(wanted[index].tokens), std::move(wanted[index].parents), {}};
    batch.proposals[index] = std::move(wanted[index].proposals);
  }
}

void Drafter::draft_trees(std::span<const DraftRequest> requests, const DraftSettings& settings, DraftBatch& batch) {
  int num_nodes = 0;
  for (const DraftRequest& request : requests) num_nodes += budget_of(request);
  const int num_threads = num_nodes < kSpreadNodes ? 1 : num_threads_;
  while (std::ssize(trees_) < num_threads) trees_.push_back(std::make_unique<TreeDrafter>());
  const int max_branches = settings.strategy == Strategy::kAdaptive ? 1 : settings.max_branches;
  spread(num_threads, requests.size(), [&](std::size_t worker, std::size_t index) {
    const Sequence& sequence = *requests[index].sequence;
    const TreeShape shape{budget_of(requests[index]), std::min(settings.max_depth, kMaxDepth),
                          std::min(max_branches, kMaxBranches)};
    const auto costs = settings.strategy == Strategy::kSpecexec ? std::span<const double>() : sequence.costs();
    trees_[worker]->draft(sequence.sources(trie), *calibration, sequence.context, shape, costs, sequence.reliability,
                          batch.drafts[index]);
  });
}

}  // namespace speculant
