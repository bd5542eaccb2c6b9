#include "drafter.hpp"

#include <algorithm>
#include <numeric>

namespace speculant {

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
    batch.drafts.push_back({std::move(each.tokens), std::move(each.parents), {}});
    batch.proposals.push_back(std::move(each.proposals));
  }
  return batch;
}

DraftBatch Drafter::draft(std::span<const DraftRequest> requests, const DraftSettings& settings,
                          std::size_t max_entries) {
  DraftBatch batch;
  for (const DraftRequest& request : requests) {
    request.sequence->settings = settings.sequence;
    request.sequence->is_calibrated |= settings.sequence.is_calibrated;
  }
  if (settings.strategy == Strategy::kTree || settings.strategy == Strategy::kAdaptive) {
    const int max_branches = settings.strategy == Strategy::kAdaptive ? 1 : settings.max_branches;
    batch.drafts.resize(requests.size());
    batch.proposals.resize(requests.size());
    for (std::size_t index = 0; index < requests.size(); ++index) {
      const Sequence& sequence = *requests[index].sequence;
      const TreeShape shape{std::min(requests[index].budget, kMaxNodes), std::min(settings.max_depth, kMaxDepth),
                            std::min(max_branches, kMaxBranches)};
      trees_.draft(sequence.sources(trie), *calibration, sequence.context, shape, sequence.costs(),
                   sequence.reliability, batch.drafts[index]);
    }
  } else {
    std::vector<GraphDraft> wanted;
    for (const auto& [sequence, budget, seed, position] : requests) {
      wanted.push_back({.context = sequence->context, .budget = budget, .seed = seed, .position = position});
    }
    batch = draft_from_graph(trie, std::move(wanted), settings, max_entries);
  }
  for (std::size_t index = 0; index < requests.size(); ++index) {
    Draft& draft = batch.drafts[index];
    if (settings.min_path_probability > 0.0) draft.leave_out_below(settings.min_path_probability);
    requests[index].sequence->note(draft);
  }
  return batch;
}

}  // namespace speculant
