// The responses to steps in a client's form, and the envelopes of messages.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "draft_objects.hpp"
#include "errors.hpp"
#include "wire.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

/// The response to a step, in a client's form.
struct StepResponse {
  std::uint64_t graph_generation, draft_id;
  std::int64_t server_time_ns;
  nb::object statuses, next_positions, generations, drafts;
};

std::string_view as_view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::list drafts_of(wire::DraftResponse& answer, const nb::object& strategy) {
  const DraftMaker& maker = DraftMaker::instance();
  const bool has_proposals = !answer.candidate_counts.empty();
  const bool has_probabilities = !answer.draft_path_probabilities.empty();
  nb::object ids = nb::none(), shares = nb::none();
  if (has_proposals) {
    ids = nb::cast(as_array(std::move(answer.candidate_tokens)));
    shares = nb::cast(as_array(std::move(answer.candidate_probabilities)));
  }
  const nb::object draft_id = nb::cast(answer.draft_id), nothing = nb::make_tuple();
  std::vector<std::uint64_t> bounds;
  nb::list drafts;
  std::size_t first = 0;
  std::uint64_t end = 0;  // of the distributions so far
  for (std::size_t index = 0; index < answer.draft_lengths.size(); ++index) {
    const std::size_t length = answer.draft_lengths[index];
    const auto part = [&](const auto& values) { return as_numbers(std::span(values).subspan(first, length)); };
    nb::object proposals = nothing;
    if (has_proposals && length > 0) {
      bounds.assign(1, end);
      for (std::size_t node = first; node < first + length; ++node) {
        bounds.push_back(end += answer.candidate_counts[node]);
      }
      proposals = maker.make_proposals(as_numbers(bounds), ids, shares);
    }
    drafts.append(maker.make({part(answer.draft_tokens), part(answer.draft_parents),
                              has_probabilities ? part(answer.draft_path_probabilities) : nothing, proposals, strategy,
                              nb::bool_(answer.ended_early[index] != 0), draft_id}));
    first += length;
  }
  return drafts;
}

wire::StreamDraftResponse read_envelope(const nb::bytes& payload) {
  try {
    return wire::read_stream_response(as_view(payload));
  } catch (const wire::ParseError&) {
    throw UnavailableError("the server is not a drafter, or a broken one; check the address");
  }
}

nb::object read_answer(const nb::bytes& payload, bool is_enveloped, const std::vector<std::int64_t>& budgets,
                       std::int64_t vocabulary_size, const nb::object& strategy) {
  std::string_view bytes = as_view(payload);
  wire::StreamDraftResponse enveloped;
  if (is_enveloped) {
    enveloped = read_envelope(payload);
    if (enveloped.is_error) return to_bytes(enveloped.step.bytes);
    bytes = enveloped.step.bytes;
  }
  wire::DraftResponse answer;
  try {
    answer = wire::read_response(bytes);
  } catch (const wire::ParseError&) {
    throw RequestError("the answer can't be parsed; check what serves at this address");
  }
  wire::check_answer(answer, budgets, vocabulary_size);
  nb::list drafts = drafts_of(answer, strategy);
  return nb::cast(StepResponse{answer.graph_generation, answer.draft_id, answer.server_time.ns(),
                               as_numbers(answer.sequence_statuses), as_numbers(answer.next_positions),
                               as_numbers(answer.sequence_generations), std::move(drafts)});
}

}  // namespace

void bind_messages(nb::module_& module) {
  nb::class_<StepResponse>(module, "StepResponse",
                           "The response to a step; values per sequence are in the order of the sequences.")
      .def_ro("graph_generation", &StepResponse::graph_generation,
              "Generation of the graph that drafted; 0 if there were several.")
      .def_ro("draft_id", &StepResponse::draft_id,
              "Identifies the response in later feedback; never 0 if drafts have nodes.")
      .def_ro("server_time_ns", &StepResponse::server_time_ns, "Time spent on the step in the server, nanoseconds.")
      .def_ro("statuses", &StepResponse::statuses, nb::for_getter(nb::sig("def statuses(self) -> tuple[int, ...]")),
              "Per sequence, a ``SequenceStatus``.")
      .def_ro("next_positions", &StepResponse::next_positions,
              nb::for_getter(nb::sig("def next_positions(self) -> tuple[int, ...]")),
              "Per sequence, the position that the server expects next; 0 without a session.")
      .def_ro("generations", &StepResponse::generations,
              nb::for_getter(nb::sig("def generations(self) -> tuple[int, ...]")),
              "Per sequence, generation of the graph that drafted.")
      .def_ro("drafts", &StepResponse::drafts,
              nb::for_getter(nb::sig("def drafts(self) -> list[speculant_graph.types.Draft]")),
              "Empty unless the status is OK.");
  module.def(
      "read_step_id",
      [](const nb::bytes& payload) {
        try {
          return wire::read_stream_request(as_view(payload)).step_id;
        } catch (const wire::ParseError&) {
          throw RequestError("the message can't be parsed; send one of this service's protocol");
        }
      },
      "payload"_a, "Return the step id of a StreamDraftRequest.");
  module.def(
      "read_answer_step_id", [](const nb::bytes& payload) { return read_envelope(payload).step_id; }, "payload"_a,
      "Return the step id of a StreamDraftResponse. DrafterUnavailableError: it can't be parsed.");
  module.def(
      "read_answer", &read_answer, "payload"_a, "is_enveloped"_a, "budgets"_a, "vocabulary_size"_a, "strategy"_a,
      nb::sig("def read_answer(payload: bytes, is_enveloped: bool, budgets: collections.abc.Sequence[int], "
              "vocabulary_size: int, strategy: str) -> StepResponse | bytes"),
      "Return the content of a DraftResponse or a StreamDraftResponse; for a failed step, its StepError.\n\n"
      "``budgets``: per sequence, requested nodes. A response that breaks a rule of the wire is refused, so that\n"
      "a draft can be verified safely.");
}

}  // namespace speculant
