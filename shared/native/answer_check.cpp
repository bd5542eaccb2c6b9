#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "errors.hpp"
#include "wire.hpp"

namespace speculant::wire {
namespace {

// Tolerance of the sum of a node's probabilities. Rounding to float32 changes the sum by about 1e-7; the rest is a
// guess.
constexpr double kMassTolerance = 1e-3;
constexpr std::uint32_t kMaxStatus = 3;  // the last of SequenceStatus

void check_token_ids(const char* name, const std::vector<std::uint32_t>& ids, std::int64_t vocabulary_size) {
  const std::int64_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest < vocabulary_size) return;
  throw RequestError(std::string(name) + " holds " + std::to_string(largest) + "; the vocabulary has " +
                     std::to_string(vocabulary_size) + " tokens");
}

void check_nodes(const DraftResponse& answer, std::int64_t vocabulary_size) {
  const std::size_t num_nodes = answer.draft_tokens.size();
  expect("draft_tokens", answer.draft_tokens, sum(answer.draft_lengths), "the sum of its lengths");
  expect("draft_parents", answer.draft_parents, num_nodes, "the number of nodes");
  const auto& probabilities = answer.draft_path_probabilities;
  if (!probabilities.empty()) {
    expect("draft_path_probabilities", probabilities, num_nodes, "the number of nodes");
    // Written so that NaN fails.
    if (!std::all_of(probabilities.begin(), probabilities.end(), [](float p) { return p >= 0.0f && p <= 1.0f; })) {
      throw RequestError("draft_path_probabilities are not all between 0 and 1");
    }
  }
  if (num_nodes == 0) return;
  check_token_ids("draft_tokens", answer.draft_tokens, vocabulary_size);
  if (answer.draft_id == 0) throw RequestError("draft_id is 0");
}

/// Check q of every node, if any were sent.
void check_proposals(const DraftResponse& answer, std::int64_t vocabulary_size) {
  const auto& counts = answer.candidate_counts;
  const auto& ids = answer.candidate_tokens;
  const auto& probabilities = answer.candidate_probabilities;
  expect("candidate_tokens", ids, sum(counts), "the sum of candidate_counts");
  expect("candidate_probabilities", probabilities, sum(counts), "the sum of candidate_counts");
  if (counts.empty()) return;
  expect("candidate_counts", counts, answer.draft_tokens.size(), "the number of nodes");
  if (std::find(counts.begin(), counts.end(), 0u) != counts.end()) {
    throw RequestError("a node has an empty distribution");
  }
  check_token_ids("candidate_tokens", ids, vocabulary_size);
  bool ascends = true, are_probabilities = true, have_mass = true, are_drawn = true;
  std::size_t entry = 0;
  for (std::size_t node = 0; node < counts.size(); ++node) {
    const std::size_t first = entry, last = first + counts[node];
    double mass = 0.0;
    bool is_drawn = false;
    for (; entry < last; ++entry) {
      const float probability = probabilities[entry];
      ascends &= entry == first || ids[entry] > ids[entry - 1];
      // Written so that NaN fails.
      are_probabilities &= probability >= 0.0f && probability < std::numeric_limits<float>::infinity();
      is_drawn |= ids[entry] == answer.draft_tokens[node] && probability > 0.0f;
      mass += static_cast<double>(probability);
    }
    have_mass &= std::abs(mass - 1.0) <= kMassTolerance;
    are_drawn &= is_drawn;
  }
  if (!ascends) throw RequestError("candidate_tokens do not ascend within a node");
  if (!are_probabilities) throw RequestError("candidate_probabilities are not all probabilities");
  if (!have_mass) throw RequestError("candidate_probabilities do not sum to 1 within a node");
  if (!are_drawn) throw RequestError("a drafted token has no probability in its own distribution");
}

void check_tree(std::span<const std::uint32_t> tokens, std::span<const std::uint32_t> parents, std::int64_t budget,
                bool has_proposals) {
  if (std::ssize(tokens) > budget) {
    throw RequestError("a draft has " + std::to_string(tokens.size()) + " nodes where " + std::to_string(budget) +
                       " were asked for");
  }
  bool is_chain = true;
  for (std::size_t node = 0; node < parents.size(); ++node) {
    if (parents[node] > node) throw RequestError("a node of a draft comes before its parent");
    is_chain &= parents[node] == node;
  }
  // Drawn siblings may repeat a token; they are recognised by their q.
  if (is_chain || has_proposals) return;
  std::vector<std::uint64_t> pairs;
  for (std::size_t node = 0; node < tokens.size(); ++node) {
    pairs.push_back(std::uint64_t{parents[node]} << 32 | tokens[node]);
  }
  std::sort(pairs.begin(), pairs.end());
  if (std::adjacent_find(pairs.begin(), pairs.end()) != pairs.end()) {
    throw RequestError("two siblings of a draft have the same token");
  }
}

}  // namespace

void check_answer(DraftResponse& answer, std::span<const std::int64_t> budgets, std::int64_t vocabulary_size) {
  const std::size_t count = budgets.size();
  expect("sequence_statuses", answer.sequence_statuses, count, "the number of sequences");
  expect("next_positions", answer.next_positions, count, "the number of sequences");
  expect("draft_lengths", answer.draft_lengths, count, "the number of sequences");
  if (answer.ended_early.empty()) answer.ended_early.resize(count);
  expect("ended_early", answer.ended_early, count, "the number of sequences");
  check_nodes(answer, vocabulary_size);
  check_proposals(answer, vocabulary_size);
  auto& generations = answer.sequence_generations;
  if (generations.empty()) generations.assign(count, answer.graph_generation);
  expect("sequence_generations", generations, count, "the number of sequences");
  std::size_t first = 0;
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint32_t status = answer.sequence_statuses[index];
    if (status == 0 || status > kMaxStatus) {
      throw RequestError("sequence status " + std::to_string(status) + " is unknown; update the client");
    }
    const std::size_t length = answer.draft_lengths[index];
    check_tree(std::span(answer.draft_tokens).subspan(first, length),
               std::span(answer.draft_parents).subspan(first, length), budgets[index],
               !answer.candidate_counts.empty());
    first += length;
  }
}

}  // namespace speculant::wire
