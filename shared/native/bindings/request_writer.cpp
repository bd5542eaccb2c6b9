// A client's message of a step, written from Python's values.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "arrays.hpp"
#include "errors.hpp"
#include "wire.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

constexpr std::uint32_t kNoRowToken = 0xFFFFFFFF;  // on the wire: the row has no more tokens; in no vocabulary

[[noreturn]] void refuse_number() {
  throw RequestError("a number of this step does not fit; token ids are whole numbers from 0 on");
}

/// A non-negative integer from Python or numpy.
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

/// Calls `take` with each item of a sequence; returns their number.
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

std::vector<std::uint32_t> numbers_of(nb::handle sequence) {
  std::vector<std::uint32_t> numbers;
  for_each(sequence.ptr(), [&](PyObject* each) { numbers.push_back(number_of<std::uint32_t>(each)); });
  return numbers;
}

/// A DraftRequest under construction, sequence by sequence.
class RequestWriter {
 public:
  RequestWriter(const nb::bytes& graph, const nb::bytes& options) {
    request_.graph.assign(graph.c_str(), graph.size());
    request_.options.bytes.assign(options.c_str(), options.size());
  }

  /// Add a sequence; if an error is thrown, nothing is added.
  void add(nb::handle token_ids, nb::handle session_id, nb::handle position, nb::handle budget, nb::handle seed,
           double least, nb::handle draft_id, nb::handle nodes, nb::handle rows) {
    const auto number = [](nb::handle each) { return number_of<std::uint64_t>(each.ptr()); };
    const std::vector<std::uint32_t> tokens = numbers_of(token_ids), named = numbers_of(nodes);
    const std::uint64_t session = number(session_id), first = number(position), drawn = number(seed);
    const std::uint64_t verified = number(draft_id);
    Table<const std::int64_t> table;
    if (!named.empty()) {
      if (!nb::try_cast(rows, table) || table.shape(0) != named.size()) refuse_number();
      const auto ids = as_span(table);
      if (std::any_of(ids.begin(), ids.end(), [](std::int64_t id) { return id > kNoRowToken; })) refuse_number();
    }
    if (!budget.is_none()) request_.node_budgets.push_back(number_of<std::uint32_t>(budget.ptr()));
    request_.context_lengths.push_back(static_cast<std::uint32_t>(tokens.size()));
    append(request_.context_tokens, tokens);
    request_.session_ids.push_back(session);
    request_.positions.push_back(first);
    request_.seeds.push_back(drawn);
    request_.least_path_probabilities.push_back(static_cast<float>(least));
    request_.feedback_draft_ids.push_back(verified);
    request_.feedback_row_counts.push_back(static_cast<std::uint32_t>(named.size()));
    append(request_.feedback_nodes, named);
    if (!named.empty()) tables_.push_back(std::move(table));
  }

  /// The message, in an envelope if it has a step id.
  wire::Written written(std::optional<std::uint64_t> step_id) const {
    wire::DraftRequest request = request_;
    if (!request.node_budgets.empty() && request.node_budgets.size() < request.context_lengths.size()) {
      throw RequestError("node budgets are mixed; give one to every sequence of a step or to none");
    }
    add_top_k(request);
    drop_zeros(request.session_ids);
    drop_zeros(request.positions);
    drop_zeros(request.seeds);
    drop_zeros(request.least_path_probabilities);
    wire::Written written = wire::write(request);
    if (step_id) wire::envelope(written, *step_id);
    return written;
  }

 private:
  template <class Number>
  static void append(std::vector<Number>& values, const std::vector<Number>& more) {
    values.insert(values.end(), more.begin(), more.end());
  }

  /// Add the rows of all sequences, padded to the width of the widest.
  void add_top_k(wire::DraftRequest& request) const {
    if (request.feedback_nodes.empty()) {
      request.feedback_draft_ids.clear(), request.feedback_row_counts.clear();
      return;
    }
    std::size_t width = 0;
    for (const auto& rows : tables_) width = std::max(width, rows.shape(1));
    request.feedback_width = static_cast<std::uint32_t>(width);
    for (const auto& rows : tables_) {
      for (std::size_t row = 0; row < rows.shape(0); ++row) {
        for (std::size_t rank = 0; rank < width; ++rank) {
          const std::int64_t id = rank < rows.shape(1) ? rows(row, rank) : -1;
          request.feedback_tokens.push_back(id < 0 ? kNoRowToken : static_cast<std::uint32_t>(id));
        }
      }
    }
  }

  wire::DraftRequest request_;
  std::vector<Table<const std::int64_t>> tables_;
};

}  // namespace

void bind_request_writer(nb::module_& module) {
  nb::class_<RequestWriter>(module, "RequestWriter", "A DraftRequest under construction, sequence by sequence.")
      .def(nb::init<const nb::bytes&, const nb::bytes&>(), "graph"_a, "options"_a,
           "Begin a message. ``graph``: its name in UTF-8; ``options``: a StrategyOptions.")
      .def("add", &RequestWriter::add, "token_ids"_a, "session_id"_a = 0, "position"_a = 0,
           "node_budget"_a.none() = nb::none(), "seed"_a = 0, "least_probability"_a = 0.0, "draft_id"_a = 0,
           "nodes"_a = nb::make_tuple(), "rows"_a.none() = nb::none(),
           nb::sig("def add(self, token_ids: collections.abc.Sequence[int], session_id: int = 0, position: int = 0, "
                   "node_budget: int | None = None, seed: int = 0, least_probability: float = 0.0, draft_id: int = 0, "
                   "nodes: collections.abc.Sequence[int] = (), "
                   "rows: numpy.typing.NDArray[numpy.int64] | None = None) -> None"),
           "Add a sequence; if a number does not fit, refuse it and add nothing.\n\n"
           "``token_ids``: tokens that are new to its session, or, if ``session_id`` is 0, the last tokens of a "
           "sequence without a\n"
           "session; ``position``: index of the first of them in the whole sequence. ``node_budget``: most nodes to "
           "draft; None,\n"
           "for all sequences or for none, means the server's default. ``draft_id``, ``nodes`` and ``rows``: as in\n"
           ":class:`~speculant_graph.types.Feedback`.")
      .def(
          "payload",
          [](const RequestWriter& self, std::optional<std::uint64_t> step_id) {
            return to_bytes(self.written(step_id).view());
          },
          "step_id"_a.none() = nb::none(),
          "Return the message, or, with a step id, the StreamDraftRequest with it. Arrays of defaults stay empty.");
}

}  // namespace speculant
