// The messages of a step as Python's values, and back: what a client writes and reads.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "arrays.hpp"
#include "draft_objects.hpp"
#include "errors.hpp"
#include "wire.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

constexpr std::uint32_t kNoRowToken = 0xFFFFFFFF;  // on the wire: the row has no more tokens; in no vocabulary

[[noreturn]] void refuse_number() {
  throw RequestError("a number of this step does not fit; token ids are whole numbers from 0 on");
}

/// A whole number from 0 on, of Python's or numpy's.
template <class Number>
Number number_of(PyObject* object) {
  nb::object index;
  if (!PyLong_Check(object)) {
    index = nb::steal(PyNumber_Index(object));
    object = index.ptr();
  }
  const unsigned long long value = object == nullptr ? 0 : PyLong_AsUnsignedLongLong(object);
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse_number();
  }
  if (value > std::numeric_limits<Number>::max()) refuse_number();
  return static_cast<Number>(value);
}

/// Calls `take` with each item of a sequence; returns how many there are.
template <class Take>
std::size_t for_each(PyObject* sequence, Take&& take) {
  const nb::object items = nb::steal(PySequence_Fast(sequence, ""));
  if (!items.is_valid()) {
    PyErr_Clear();
    refuse_number();
  }
  const bool is_list = PyList_Check(items.ptr());
  const Py_ssize_t size = is_list ? PyList_Size(items.ptr()) : PyTuple_Size(items.ptr());
  for (Py_ssize_t index = 0; index < size; ++index) {
    take(is_list ? PyList_GetItem(items.ptr(), index) : PyTuple_GetItem(items.ptr(), index));
  }
  return static_cast<std::size_t>(size);
}

template <class Number>
void drop_zeros(std::vector<Number>& values) {
  if (std::all_of(values.begin(), values.end(), [](Number value) { return value == 0; })) values.clear();
}

/// The rows of all sequences of a request, filled up to the width of the widest.
class FeedbackWriter {
 public:
  explicit FeedbackWriter(wire::DraftRequest& request) : request_(request) {}

  void add(nb::handle feedback) {
    std::uint64_t draft_id = 0;
    std::uint32_t num_rows = 0;
    if (!feedback.is_none()) {
      draft_id = number_of<std::uint64_t>(nb::object(feedback.attr("draft_id")).ptr());
      const nb::object nodes = feedback.attr("nodes");
      num_rows = static_cast<std::uint32_t>(for_each(
          nodes.ptr(), [&](PyObject* node) { request_.feedback_nodes.push_back(number_of<std::uint32_t>(node)); }));
      if (num_rows > 0) add_rows(feedback.attr("rows"), num_rows);
    }
    request_.feedback_draft_ids.push_back(draft_id);
    request_.feedback_row_counts.push_back(num_rows);
  }

  void finish() {
    if (request_.feedback_nodes.empty()) {
      request_.feedback_draft_ids.clear(), request_.feedback_row_counts.clear();
      return;
    }
    request_.feedback_width = static_cast<std::uint32_t>(width_);
    for (const auto& rows : tables_) {
      for (std::size_t row = 0; row < rows.shape(0); ++row) {
        for (std::size_t rank = 0; rank < width_; ++rank) {
          const std::int64_t id = rank < rows.shape(1) ? rows(row, rank) : -1;
          if (id > kNoRowToken) refuse_number();
          request_.feedback_tokens.push_back(id < 0 ? kNoRowToken : static_cast<std::uint32_t>(id));
        }
      }
    }
  }

 private:
  void add_rows(const nb::object& rows, std::size_t num_rows) {
    Table<const std::int64_t> table;
    if (!nb::try_cast(rows, table) || table.shape(0) != num_rows) refuse_number();
    width_ = std::max(width_, table.shape(1));
    tables_.push_back(std::move(table));
  }

  wire::DraftRequest& request_;
  std::vector<Table<const std::int64_t>> tables_;
  std::size_t width_ = 0;
};

wire::DraftRequest request_of(const nb::bytes& graph, const nb::bytes& options, const nb::object& sequences) {
  wire::DraftRequest request;
  request.graph.assign(graph.c_str(), graph.size());
  request.options.bytes.assign(options.c_str(), options.size());
  FeedbackWriter feedback(request);
  const std::size_t count = for_each(sequences.ptr(), [&](PyObject* sequence) {
    const auto field = [&](int index) { return PyTuple_GetItem(sequence, index); };
    if (!PyTuple_Check(sequence) || PyTuple_Size(sequence) != 7)
      throw RequestError("give sequences as tuples of seven");
    const std::size_t size = request.context_tokens.size();
    for_each(field(0), [&](PyObject* id) { request.context_tokens.push_back(number_of<std::uint32_t>(id)); });
    request.context_lengths.push_back(static_cast<std::uint32_t>(request.context_tokens.size() - size));
    request.session_ids.push_back(field(1) == Py_None ? 0 : number_of<std::uint64_t>(field(1)));
    request.positions.push_back(number_of<std::uint64_t>(field(2)));
    if (field(3) != Py_None) request.node_budgets.push_back(number_of<std::uint32_t>(field(3)));
    request.seeds.push_back(number_of<std::uint64_t>(field(4)));
    feedback.add(field(5));
    const double least = PyFloat_AsDouble(field(6));
    if (PyErr_Occurred() != nullptr) nb::raise_python_error();
    request.least_path_probabilities.push_back(static_cast<float>(least));
  });
  if (!request.node_budgets.empty() && request.node_budgets.size() < count) {
    throw RequestError("node budgets are mixed; give one to every sequence of a step or to none");
  }
  feedback.finish();
  drop_zeros(request.session_ids);
  drop_zeros(request.positions);
  drop_zeros(request.seeds);
  drop_zeros(request.least_path_probabilities);
  return request;
}

nb::bytes as_bytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }
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
    throw UnavailableError("what answers is no drafter, or a broken one; check the address");
  }
}

nb::object read_answer(const nb::bytes& payload, bool is_enveloped, const std::vector<std::int64_t>& budgets,
                       std::int64_t vocabulary_size, const nb::object& strategy) {
  std::string_view bytes = as_view(payload);
  wire::StreamDraftResponse enveloped;
  if (is_enveloped) {
    enveloped = read_envelope(payload);
    if (enveloped.is_error) return as_bytes(enveloped.step.bytes);
    bytes = enveloped.step.bytes;
  }
  wire::DraftResponse answer;
  try {
    answer = wire::read_response(bytes);
  } catch (const wire::ParseError&) {
    throw RequestError("the answer can't be parsed; check what serves at this address");
  }
  wire::check_answer(answer, budgets, vocabulary_size);
  const nb::list drafts = drafts_of(answer, strategy);
  return nb::make_tuple(answer.graph_generation, answer.draft_id, answer.server_time.ns(),
                        as_numbers(answer.sequence_statuses), as_numbers(answer.next_positions), drafts,
                        as_numbers(answer.sequence_generations));
}

}  // namespace

void bind_messages(nb::module_& module) {
  module.def(
      "write_request",
      [](const nb::bytes& graph, const nb::bytes& options, const nb::object& sequences,
         std::optional<std::uint64_t> step_id) {
        wire::Written written = wire::write(request_of(graph, options, sequences));
        if (step_id) wire::envelope(written, *step_id);
        return as_bytes(written.view());
      },
      "graph"_a, "options"_a, "sequences"_a, "step_id"_a.none(),
      nb::sig("def write_request(graph: bytes, options: bytes, "
              "sequences: collections.abc.Sequence[tuple[object, ...]], step_id: int | None) -> bytes"),
      "Return a DraftRequest, or, with a step id, the StreamDraftRequest round it. ``graph``: its name in UTF-8;\n"
      "``options``: a StrategyOptions; ``sequences``: each a ``SequenceRequest``. Arrays that hold nothing but\n"
      "defaults stay empty.");
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
      "Return the step id of a StreamDraftResponse. DrafterUnavailableError: it is none.");
  module.def(
      "read_answer", &read_answer, "payload"_a, "is_enveloped"_a, "budgets"_a, "vocabulary_size"_a, "strategy"_a,
      nb::sig("def read_answer(payload: bytes, is_enveloped: bool, budgets: collections.abc.Sequence[int], "
              "vocabulary_size: int, strategy: str) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...], "
              "list[speculant_graph.types.Draft], tuple[int, ...]] | bytes"),
      "Return what a DraftResponse, or a StreamDraftResponse, holds: generation, draft id, nanoseconds in the server,\n"
      "and per sequence status, next position, draft and generation. Of a step that failed, its StepError.\n\n"
      "``budgets``: per sequence, most nodes asked for. An answer that breaks a rule of the wire is refused, so that\n"
      "a draft can be verified safely.");
}

}  // namespace speculant
