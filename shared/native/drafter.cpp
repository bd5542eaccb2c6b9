#include "drafter.hpp"

#include <algorithm>
#include <numeric>

namespace speculant {
namespace {

constexpr std::size_t kMaxSettings = 256;  // clients may ask for anything, so nothing is kept for ever

}  // namespace

DraftBatch draft_from_graph(const Trie& trie, std::vector<GraphDraft> wanted, const DraftSettings& settings,
                            std::size_t max_entries) {
  DraftBatch batch;
  if (settings.strategy == Strategy::kGreedy) {
    for (GraphDraft& each : wanted) {
      each.tokens.resize(static_cast<std::size_t>(each.budget));
      each.tokens.resize(draft_greedy(trie, each.context, settings.distribution.attention, each.tokens));
      each.parents.resize(each.tokens.size());
      std::iota(each.parents.begin(), each.parents.end(), 0);
    }
  } else if (settings.siblings == Siblings::kNone || settings.omits_proposals) {
    // Without q no rule has any use for siblings.
    draw_chains(trie, wanted, settings.distribution, settings.is_coupled, settings.omits_proposals ? 0 : max_entries,
                batch.distributions);
  } else {
    const DrawnTreeShape shape{settings.siblings == Siblings::kIndependent, settings.max_branches,
                               settings.max_depth};
    draw_trees(trie, wanted, settings.distribution, shape, max_entries, batch.distributions);
  }
  for (GraphDraft& each : wanted) {
    batch.ended_early.push_back(std::ssize(each.tokens) < each.budget);
    batch.drafts.push_back({std::move(each.tokens), std::move(each.parents), {}});
    batch.proposals.push_back(std::move(each.proposals));
  }
  return batch;
}

std::shared_ptr<Sequence> Drafter::open(std::shared_ptr<LearnedMemory> memory, bool learns,
                                        std::vector<double> costs) {
  auto sequence = std::make_shared<Sequence>(std::move(memory), max_session_tokens_, learns, std::move(costs));
  sequence->settings = settings_of("")->sequence;
  return sequence;
}

std::shared_ptr<const DraftSettings> Drafter::settings_of(const std::string& options) {
  const auto known = settings_.find(options);
  if (known != settings_.end()) return known->second;
  auto found = std::make_shared<const DraftSettings>(host_->settings_of(options));
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
      wanted.push_back(
          {.context = sequence->context, .budget = budget_of(index), .seed = seed, .position = position});
    }
    batch = draft_from_graph(trie, std::move(wanted), settings, max_entries);
  } else {
    batch.drafts.resize(count);
    batch.ended_early.resize(count);
    batch.proposals.resize(count);
    const int max_branches = settings.strategy == Strategy::kAdaptive ? 1 : settings.max_branches;
    for (std::size_t index = 0; index < count; ++index) {
      Sequence& sequence = *requests[index].sequence;
      Draft& draft = batch.drafts[index];
      if (!settings.is_of_core()) {
        batch.ended_early[index] = host_->draft(*this, sequence, settings, budget_of(index), draft);
        continue;
      }
      const TreeShape shape{budget_of(index), std::min(settings.max_depth, kMaxDepth),
                            std::min(max_branches, kMaxBranches)};
      trees_.draft(sequence.sources(trie), *calibration, sequence.context, shape, sequence.costs(),
                   sequence.reliability, draft);
      batch.ended_early[index] = std::ssize(draft.tokens) < budget_of(index);
    }
  }
  for (std::size_t index = 0; index < count; ++index) {
    Draft& draft = batch.drafts[index];
    const std::size_t size = draft.size();
    if (settings.min_path_probability > 0.0) draft.leave_out_below(settings.min_path_probability);
    batch.ended_early[index] |= draft.size() < size;
    requests[index].sequence->note(draft);
  }
  return batch;
}

DraftBatch Drafter::draft_after(std::span<const std::vector<Token>> contexts, std::vector<DraftRequest> requests,
                                const DraftSettings& settings, std::size_t max_entries) {
  std::vector<std::shared_ptr<Sequence>> sequences;
  if (settings.is_from_graph() && trie.max_order() > 0) {
    std::vector<GraphDraft> wanted;
    for (std::size_t index = 0; index < contexts.size(); ++index) {
      const DraftRequest& request = requests[index];
      wanted.push_back({.context = trie.match(contexts[index]), .budget = std::clamp(request.budget, 0, kMaxNodes),
                        .seed = request.seed, .position = request.position});
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
