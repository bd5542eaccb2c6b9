// A step's messages: from the bytes of a request to the bytes of a response.
#include <chrono>

#include "step.hpp"

namespace speculant {
namespace {

constexpr const char* kNotParsed = "the message can't be parsed; send one of this service's protocol";

std::int64_t clock_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class To, class From>
void append(std::vector<To>& values, const From& more) {
  values.insert(values.end(), more.begin(), more.end());
}

}  // namespace

std::optional<wire::Written> StepHandler::answer(std::string_view payload, bool is_enveloped, const Tenants& tenants,
                                                  std::uint64_t draft_id, std::int64_t now_ns, StepCallbacks& host,
                                                  StepCounts& counts, std::int64_t most_ns) {
  const std::int64_t started_ns = clock_ns();
  wire::StreamDraftRequest enveloped;
  Step step{.request = {}, .draft_id = draft_id, .now_ns = now_ns};
  try {
    if (is_enveloped) enveloped = wire::read_stream_request(payload);
    step.request = wire::read_request(is_enveloped ? std::string_view(enveloped.draft.bytes) : payload);
  } catch (const wire::ParseError&) {
    throw RequestError(kNotParsed);
  }
  if (!run(step, tenants, host, most_ns)) return std::nullopt;

  wire::DraftResponse response;
  response.draft_id = draft_id;
  bool is_of_one = true;
  for (const Step::Part& part : step.parts) {
    response.sequence_statuses.push_back(static_cast<std::uint32_t>(part.status));
    response.next_positions.push_back(part.next_position);
    response.sequence_generations.push_back(part.generation);
    response.ended_early.push_back(part.draft.ended_early);
    part.draft.append_to(response.draft_lengths, response.draft_tokens, response.draft_parents,
                         response.draft_path_probabilities);
    for (const auto& [first, last] : part.draft.proposals) {
      response.candidate_counts.push_back(static_cast<std::uint32_t>(last - first));
      append(response.candidate_tokens, std::span(part.distributions->tokens).subspan(first, last - first));
      append(response.candidate_probabilities,
             std::span(part.distributions->probabilities).subspan(first, last - first));
    }
    if (part.generation == 0) continue;
    is_of_one &= response.graph_generation == 0 || response.graph_generation == part.generation;
    response.graph_generation = part.generation;
  }
  if (!is_of_one) response.graph_generation = 0;
  if (is_of_one && response.graph_generation == 0) response.graph_generation = host.default_generation();
  if (response.graph_generation != 0) response.sequence_generations.clear();
  counts = {step.size(), response.draft_tokens.size(), step.num_empty, step.num_without_neural,
            clock_ns() - started_ns};
  response.server_time = wire::Duration::of(counts.elapsed_ns);
  wire::Written written = wire::write(response);
  if (written.view().size() + kEnvelopeBytes > limits_.max_message_bytes) {
    throw LimitError("the answer is larger than " + std::to_string(limits_.max_message_bytes) +
                     " bytes; ask for fewer nodes, or send fewer sequences at a time");
  }
  if (is_enveloped) wire::envelope(written, enveloped.step_id);
  return written;
}

}  // namespace speculant
