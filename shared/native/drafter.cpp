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

}  // namespace

DraftBatch draft_from_graph(const Trie& trie, std::vector<GraphDraft> wanted, const DraftSettings& settings,
                            std::size_t max_entries) {
  DraftBatch batch;
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
  for (GraphDraft& each : wanted) {
    batch.ended_early.push_back(std::ssize(each.tokens) < each.budget);
    batch.drafts.push_back({std::move(each.tokens), std::move(each.parents), {}});
    batch.proposals.push_back(std::move(each.proposals));
  }
  return batch;
}

std::shared_ptr<Sequence> Drafter::open(std::shared_ptr<LearnedMemory> memory, bool learns, std::vector<double> costs) {
  auto sequence = std::make_shared<Sequence>(std::move(memory), max_session_tokens_, learns, std::move(costs));
  sequence->settings = settings_of("")->sequence;
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
  DraftBatch batch;
  const std::size_t count = requests.size();
  const auto budget_of = [&](std::size_t index) { return std::clamp(requests[index].budget, 0, kMaxNodes); };
  for (const DraftRequest& request : requests) {
    request.sequence->settings = settings.sequence;
    request.sequence->is_calibrated |= settings.sequence.is_calibrated;
  }
  if (settings.is_from_graph()) {
    std::vector<GraphDraft> wanted;
    for (std::size_t index = 0; index < count; ++index) {
      const auto& [sequence, budget, seed, position] = requests[index];
      wanted.push_back({.context = sequence->context, .budget = budget_of(index), .seed = seed, .position = position});
    }
    batch = draft_from_graph(trie, std::move(wanted), settings, max_entries);
  } else {
    batch.drafts.resize(count);
    batch.ended_early.resize(count);
    batch.proposals.resize(count);
    draft_trees(requests, settings, batch);
  }
  for (std::size_t index = 0; index < count; ++index) requests[index].sequence->note(batch.drafts[index]);
  return batch;
}

void Drafter::draft_trees(std::span<const DraftRequest> requests, const DraftSettings& settings, DraftBatch& batch) {
  int num_nodes = 0;
  for (const DraftRequest& request : requests) num_nodes += std::clamp(request.budget, 0, kMaxNodes);
  const int num_threads = num_nodes < kSpreadNodes ? 1 : num_threads_;
  while (std::ssize(trees_) < num_threads) trees_.push_back(std::make_unique<TreeDrafter>());
  const int max_branches = settings.strategy == Strategy::kAdaptive ? 1 : settings.max_branches;
  spread(num_threads, requests.size(), [&](std::size_t worker, std::size_t index) {
    const Sequence& sequence = *requests[index].sequence;
    const TreeShape shape{std::clamp(requests[index].budget, 0, kMaxNodes), std::min(settings.max_depth, kMaxDepth),
                          std::min(max_branches, kMaxBranches)};
    const auto costs = settings.strategy == Strategy::kSpecexec ? std::span<const double>() : sequence.costs();
    trees_[worker]->draft(sequence.sources(trie), *calibration, sequence.context, shape, costs, sequence.reliability,
                          batch.drafts[index]);
    batch.ended_early[index] = std::ssize(batch.drafts[index].tokens) < shape.budget;
  });
}

DraftBatch Drafter::draft_after(std::span<const std::vector<Token>> contexts, std::vector<DraftRequest> requests,
                                const DraftSettings& settings, std::size_t max_entries) {
  std::vector<std::shared_ptr<Sequence>> sequences;
  if (settings.is_from_graph() && trie.max_order() > 0) {
    std::vector<GraphDraft> wanted;
    for (std::size_t index = 0; index < contexts.size(); ++index) {
      const DraftRequest& request = requests[index];
      wanted.push_back({.context = trie.match(contexts[index]),
                        .budget = std::clamp(request.budget, 0, kMaxNodes),
                        .seed = request.seed,
                        .position = request.position});
    }
    return draft_from_graph(trie, std::move(wanted), settings, max_entries);
  }
  const auto memory = std::make_shared<LearnedMemory>(1);
  for (std::size_t index = 0; index < contexts.size(); ++index) {
    sequences.push_back(open(memory, false, {}));
    sequences.back()->settings = settings.sequence;
    accept(*sequences.back(), contexts[index], true);
    requests[index].sequence = sequences.back().get();
  }
  return draft(requests, settings, max_entries);
}

}  // namespace speculant
