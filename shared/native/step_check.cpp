// A server's checks of a step, against the rules of the wire and the limits.
#include <algorithm>

#include "step.hpp"

namespace speculant {
namespace {

// Options known to be served. Clients may send any options, so the cache is bounded, like kMaxSettings.
constexpr std::size_t kMaxOptions = 256;

/// Fill an empty array with zeros, its default.
template <class Number>
void per_sequence(const char* name, std::vector<Number>& values, std::size_t count) {
  if (values.empty()) values.resize(count);
  wire::expect(name, values, count, "the number of sequences");
}

}  // namespace

/// Check a request, and fill in the server's defaults.
void StepHandler::check(Step& step, StepCallbacks& host) {
  wire::DraftRequest& request = step.request;
  const std::size_t count = step.size();
  const auto limit = [](std::uint64_t number, std::uint64_t most, const char* what, const char* advice,
                        const char* end = "") {
    if (number <= most) return;
    throw LimitError(std::to_string(number) + what + advice + std::to_string(most) + end);
  };
  limit(count, limits_.max_sequences, " sequences in one message", "; send at most ");
  limit(request.context_tokens.size(), limits_.max_tokens, " context tokens in one message", "; send at most ",
        ", in parts");
  auto& budgets = request.node_budgets;
  if (!budgets.empty()) {
    limit(*std::max_element(budgets.begin(), budgets.end()), limits_.max_nodes, " nodes asked for",
          "; ask for at most ");
  }
  const std::string& options = request.options.bytes;
  const auto is_known = [&] { return std::lock_guard(mutex_), known_options_.contains(options); };
  if (!step.settings && !is_known()) {
    host.check_options(options);
    std::lock_guard guard(mutex_);
    if (known_options_.size() >= kMaxOptions) known_options_.clear();
    known_options_.insert(options);
  }
  per_sequence("session_ids", request.session_ids, count);
  per_sequence("positions", request.positions, count);
  wire::expect("context_tokens", request.context_tokens, wire::sum(request.context_lengths), "the sum of its lengths");
  if (budgets.empty()) budgets.assign(count, limits_.budget);
  per_sequence("node_budgets", budgets, count);
  per_sequence("seeds", request.seeds, count);
  per_sequence("least_path_probabilities", request.least_path_probabilities, count);
  for (float each : request.least_path_probabilities) {
    if (!(0.0f <= each && each <= 1.0f)) {
      throw RequestError("a least path probability is " + std::to_string(each) + "; send one from 0 to 1");
    }
  }
  per_sequence("feedback_draft_ids", request.feedback_draft_ids, count);
  per_sequence("feedback_row_counts", request.feedback_row_counts, count);
  wire::expect("feedback_nodes", request.feedback_nodes, wire::sum(request.feedback_row_counts),
               "the sum of its lengths");
  wire::expect("feedback_tokens", request.feedback_tokens, request.feedback_nodes.size() * request.feedback_width,
               "feedback_width times the number of rows");
  limit(wire::sum(budgets), limits_.max_step_nodes, " nodes asked for in one step", "; ask for at most ", " a step");
  const bool is_of_message = step.parts.empty();
  step.parts.resize(count);
  std::unordered_set<std::uint64_t> seen;
  std::size_t token = 0, row = 0;
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint64_t id = request.session_ids[index];
    Step::Part& part = step.parts[index];
    if (id != 0 && !part.session && !seen.insert(id).second) {
      throw RequestError("a session appears twice in one step; send one sequence for each");
    }
    part.first_token = token, part.first_row = row;
    part.budget = static_cast<int>(std::min<std::uint32_t>(budgets[index], kMaxNodes));
    if (is_of_message) {
      part.seed = request.seeds[index];
      part.least_probability = request.least_path_probabilities[index];
    }
    token += request.context_lengths[index];
    row += request.feedback_row_counts[index];
  }
}

}  // namespace speculant
