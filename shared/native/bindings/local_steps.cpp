// Drafting in this process: the step of a server without its messages, and the rows of an engine's batch.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>

#include "arrays.hpp"
#include "budget.hpp"
#include "draft_objects.hpp"
#include "rows.hpp"
#include "step.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

// Last tokens by which a caller's text is known to continue the session's. A guess: a text that changed further back
// keeps its session, and its drafts are worse.
constexpr std::size_t kTail = 16;
constexpr std::uint32_t kNoId = std::numeric_limits<std::uint32_t>::max();  // in no vocabulary

std::uint32_t id_of(std::int64_t number) {
  return 0 <= number && number < kNoId ? static_cast<std::uint32_t>(number) : kNoId;
}

/// A text of Python's: an array of whole numbers, or any sequence of them; to be read while it lives.
class Text {
 public:
  explicit Text(nb::handle text) {
    if (PyObject_CheckBuffer(text.ptr())) {
      if (PyObject_GetBuffer(text.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND) == 0) {
        const bool is_whole = view_.format != nullptr && std::strchr("iIlLqQ", view_.format[0]) != nullptr;
        has_view_ = is_whole && view_.ndim == 1 && (view_.itemsize == 4 || view_.itemsize == 8);
        if (has_view_) return;
        PyBuffer_Release(&view_);
      }
      PyErr_Clear();  // read number by number, as where it is not contiguous
    }
    numbers_ = PyList_Check(text.ptr()) ? nb::borrow(text) : nb::steal(PySequence_List(text.ptr()));
    if (!numbers_.is_valid()) nb::raise_python_error();
  }
  ~Text() {
    if (has_view_) PyBuffer_Release(&view_);
  }
  Text(const Text&) = delete;

  std::size_t size() const {
    return has_view_ ? static_cast<std::size_t>(view_.shape[0]) : static_cast<std::size_t>(nb::len(numbers_));
  }
  std::int64_t operator[](std::size_t index) const {
    if (has_view_ && view_.itemsize == 4) return static_cast<const std::int32_t*>(view_.buf)[index];
    if (has_view_) return static_cast<const std::int64_t*>(view_.buf)[index];
    const auto number = PyLong_AsLongLong(PyList_GetItem(numbers_.ptr(), static_cast<Py_ssize_t>(index)));
    if (number == -1 && PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_OverflowError)) nb::raise_python_error();
      PyErr_Clear();  // too large for an id
    }
    return number;
  }
  /// The text as it lies in memory, or as it is put into `numbers`.
  std::span<const std::int32_t> ids(std::vector<std::int32_t>& numbers) const {
    if (has_view_ && view_.itemsize == 4) return {static_cast<const std::int32_t*>(view_.buf), size()};
    for (std::size_t index = 0; index < size(); ++index) numbers.push_back(static_cast<std::int32_t>((*this)[index]));
    return numbers;
  }

 private:
  Py_buffer view_ = {};
  bool has_view_ = false;
  nb::object numbers_;
};

/// The rows of a batch as they were given, and the sequences that they are.
struct Batch {
  Batch() = default;
  Batch(Batch&&) = default;
  nb::list given = {};
  std::vector<std::unique_ptr<Text>> texts = {};
  MatchedRows rows = {};
};

/// What the target made of the latest draft of a sequence.
struct LocalFeedback {
  std::uint64_t draft_id;
  std::vector<std::uint32_t> nodes;
  Table<const std::int64_t> rows;
};

/// The sessions of one drafter in this process, and their steps.
class LocalSteps {
 public:
  explicit LocalSteps(std::shared_ptr<Drafter> drafter)
      : drafter_(std::move(drafter)), table_(std::make_shared<SessionTable>(kNoLimits)), steps_(kAnyStep, table_) {}

  void open(std::uint64_t id, std::string tenant, std::shared_ptr<LearnedMemory> memory, bool learns) {
    without_gil([&] { table_->open(id, {drafter_, 1}, std::move(tenant), std::move(memory), learns, 0); });
    known_[id] = {};
  }

  /// The sequences, of these, whose texts do not continue what was taken of them.
  std::vector<std::uint64_t> changed(const std::vector<std::uint64_t>& ids, const nb::list& texts) const {
    std::vector<std::uint64_t> changed;
    for (std::size_t index = 0; index < ids.size(); ++index) {
      const Known& known = known_.at(ids[index]);
      const Text text(texts[index]);
      bool is_same = text.size() >= known.size;
      for (std::size_t back = 1; is_same && back <= std::min(known.size, kTail); ++back) {
        is_same = id_of(text[known.size - back]) == known.tail[(known.size - back) % kTail];
      }
      if (!is_same) changed.push_back(ids[index]);
    }
    return changed;
  }

  /// A step that asks for drafts.
  Step begin(std::vector<float> least, const DraftSettings& settings, std::uint64_t draft_id) const {
    Step step{.request = {}, .draft_id = draft_id, .now_ns = 0, .settings = std::make_shared<DraftSettings>(settings)};
    step.request.least_path_probabilities = std::move(least);
    step.learns_later = true;
    return step;
  }

  /// Add what is new of a sequence to a step.
  void add(Step& step, std::uint64_t id, const Text& text, std::int64_t budget) {
    wire::DraftRequest& request = step.request;
    Known& known = known_.at(id);
    const std::size_t size = text.size(), first = std::min(known.size, size);
    request.session_ids.push_back(id);
    request.positions.push_back(first);
    request.context_lengths.push_back(static_cast<std::uint32_t>(size - first));
    request.node_budgets.push_back(static_cast<std::uint32_t>(std::clamp<std::int64_t>(budget, 0, kMaxNodes)));
    for (std::size_t each = first; each < size; ++each) {
      known.tail[each % kTail] = request.context_tokens.emplace_back(id_of(text[each]));
    }
    known.size = size;
  }

  /// Add what the target made of latest drafts. What names nodes that a draft does not have teaches nothing.
  void add_feedback(Step& step, std::vector<std::optional<LocalFeedback>> feedback) const {
    wire::DraftRequest& request = step.request;
    for (std::size_t index = 0; index < feedback.size(); ++index) {
      const std::size_t most = known_.at(request.session_ids[index]).num_nodes;
      auto& each = feedback[index];
      if (each && std::any_of(each->nodes.begin(), each->nodes.end(), [=](auto node) { return node > most; }))
        each.reset();
    }
    std::size_t width = 0;
    for (const auto& each : feedback) width = std::max(width, each ? each->rows.shape(1) : 0);
    request.feedback_width = static_cast<std::uint32_t>(width);
    for (const auto& each : feedback) {
      request.feedback_draft_ids.push_back(each ? each->draft_id : 0);
      request.feedback_row_counts.push_back(each ? static_cast<std::uint32_t>(each->nodes.size()) : 0);
      if (!each) continue;
      if (each->rows.shape(0) != each->nodes.size()) throw RequestError("give one row per node");
      request.feedback_nodes.insert(request.feedback_nodes.end(), each->nodes.begin(), each->nodes.end());
      for (std::size_t row = 0; row < each->nodes.size(); ++row) {
        for (std::size_t column = 0; column < width; ++column) {
          request.feedback_tokens.push_back(column < each->rows.shape(1) ? id_of(each->rows(row, column)) : kNoId);
        }
      }
    }
  }

  /// Answer a step; what it taught is learned when this has returned.
  void run(Step& step) {
    without_gil([&] { steps_.run(step, std::nullopt, host_, std::numeric_limits<std::int64_t>::max()); });
    for (std::size_t index = 0; index < step.size(); ++index) {
      known_.at(step.request.session_ids[index]).num_nodes = step.parts[index].draft.size();
    }
  }

  /// End a session and return what its memory has learned.
  std::vector<Token> end(std::uint64_t id) {
    known_.erase(id);
    return without_gil([&] {
      drafter_->learn_rest();  // of the session's last tokens, before its memory knows them
      if (const auto session = table_->look_at(id)) table_->end(*session, SessionEnd::kClosed);
      std::vector<EndedSession> ended = table_->take_ended();
      return ended.empty() ? std::vector<Token>() : std::move(ended.front().learned);
    });
  }

 private:
  struct Known {
    std::size_t size = 0;
    std::array<std::uint32_t, kTail> tail = {};  // a token at its position modulo kTail
    std::size_t num_nodes = 0;                   // of its latest draft
  };
  // In this process nobody limits anybody. kFar is half of the largest number, so that sums with it are numbers, too; 1
  // GB of a message, of which there is none, only bounds the distributions of a step.
  static constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 2;
  static constexpr SessionLimits kNoLimits{std::numeric_limits<std::size_t>::max(), kFar, kFar, 0};
  static constexpr StepLimits kAnyStep{.max_sequences = std::numeric_limits<std::size_t>::max(),
                                       .max_tokens = std::numeric_limits<std::size_t>::max(),
                                       .max_nodes = std::numeric_limits<std::uint32_t>::max(),
                                       .max_step_nodes = std::numeric_limits<std::uint64_t>::max(),
                                       .max_message_bytes = std::size_t{1} << 30,
                                       .budget = 0};

  std::shared_ptr<Drafter> drafter_;
  std::shared_ptr<SessionTable> table_;
  StepAnswerer steps_;
  StepHost host_;  // never asked: all sequences have sessions, and the settings are given
  std::unordered_map<std::uint64_t, Known> known_;
};

/// Leave out of drafts what does not pay: of all nodes the most probable ones are kept.
void keep_paying(Step& step, std::span<const double> seconds, double rate) {
  struct Node {
    double probability;
    std::size_t part, node;
  };
  std::vector<Node> nodes;
  std::size_t num_fixed = 0;
  for (std::size_t index = 0; index < step.parts.size(); ++index) {
    const Draft& draft = step.parts[index].draft;
    if (draft.probabilities.empty()) num_fixed += draft.size();
    for (std::size_t node = 0; node < draft.probabilities.size(); ++node) {
      nodes.push_back({draft.probabilities[node], index, node});
    }
  }
  // No path is more probable than its beginning, and equals stay in order: parents stay before their children.
  std::stable_sort(nodes.begin(), nodes.end(), [](auto& a, auto& b) { return a.probability > b.probability; });
  std::vector<double> gains;
  for (const Node& node : nodes) gains.push_back(node.probability);
  const std::size_t first = step.parts.size() + num_fixed;
  if (seconds.size() < first + nodes.size() + 1) throw RequestError("seconds of wider passes are needed");
  const std::size_t num_kept = best_size(gains, seconds.subspan(first), rate);
  std::vector<std::vector<std::uint8_t>> kept;
  for (const Step::Part& part : step.parts) kept.emplace_back(part.draft.probabilities.size());
  for (std::size_t index = 0; index < num_kept; ++index) kept[nodes[index].part][nodes[index].node] = 1;
  for (std::size_t index = 0; index < step.parts.size(); ++index) {
    Draft& draft = step.parts[index].draft;
    if (!draft.probabilities.empty()) draft.keep(kept[index]);
  }
}

/// Drafts of the rows of a batch, one after another; made into Python's when they are asked for.
struct RowDrafts {
  std::vector<std::uint32_t> lengths;
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<double> probabilities;  // empty where the strategy has none
  std::size_t num_drafted = 0;        // nodes, those that were not kept included

  explicit RowDrafts(const Step& step) {
    for (const Step::Part& part : step.parts) {
      part.draft.append_to(lengths, tokens, parents, probabilities);
    }
  }
  RowDrafts(std::vector<std::uint32_t> lengths, std::vector<Token> tokens, std::vector<std::int32_t> parents,
            std::vector<double> probabilities, std::optional<std::size_t> num_drafted)
      : lengths(std::move(lengths)),
        tokens(std::move(tokens)),
        parents(std::move(parents)),
        probabilities(std::move(probabilities)),
        num_drafted(num_drafted.value_or(this->tokens.size())) {
    if (wire::sum(this->lengths) != this->tokens.size() || this->parents.size() != this->tokens.size() ||
        (!this->probabilities.empty() && this->probabilities.size() != this->tokens.size())) {
      throw RequestError("lengths, tokens, parents and probabilities are not of the same drafts");
    }
  }

  nb::list lists() const {
    nb::list rows;
    std::size_t node = 0;
    for (std::uint32_t length : lengths) {
      nb::list row;
      for (const std::size_t end = node + length; node < end; ++node) row.append(tokens[node]);
      rows.append(row);
    }
    return rows;
  }
};

void bind_rows(nb::module_& module) {
  nb::class_<Batch>(module, "Batch", "The rows of a batch as sequences, which have numbers. Holds on to their texts.")
      .def_prop_ro(
          "session_ids", [](const Batch& self) { return self.rows.ids; }, "Per row, its sequence.")
      .def_prop_ro(
          "texts", [](const Batch& self) { return self.given; }, nb::sig("def texts(self) -> list[typing.Any]"),
          "As they were given.")
      .def_prop_ro(
          "begun", [](const Batch& self) { return self.rows.begun; }, "Rows that begin a sequence.")
      .def_prop_ro(
          "ended", [](const Batch& self) { return self.rows.ended; }, "Sequences that no row continues.")
      .def_prop_ro(
          "is_changed", [](const Batch& self) { return !self.rows.begun.empty() || !self.rows.ended.empty(); },
          "Whether a sequence has begun or ended.")
      .def_prop_ro(
          "num_new", [](const Batch& self) { return self.rows.num_new; },
          "Tokens that are new to the sequences that go on.");
  nb::class_<RowTracker>(module, "RowTracker", "Finds the sequences of an engine's rows, from batch to batch.")
      .def(nb::init<std::size_t>(), "most_new"_a, "``most_new``: most tokens that a step adds to a row.")
      .def(
          "match",
          [](RowTracker& self, const nb::list& texts, const std::optional<std::vector<std::string>>& names) {
            const std::size_t count = texts.size();
            if (names && names->size() != count) throw RequestError("give one name for each text");
            Batch batch;
            std::vector<std::vector<std::int32_t>> copies(count);
            std::vector<Row> rows;
            for (std::size_t index = 0; index < count; ++index) {
              batch.texts.push_back(std::make_unique<Text>(texts[index]));
              rows.push_back({batch.texts.back()->ids(copies[index]),
                              names ? std::string_view((*names)[index]) : std::string_view()});
            }
            batch.rows = self.match(rows);
            batch.given = texts;
            return batch;
          },
          "texts"_a, "names"_a.none(),
          nb::sig("def match(self, texts: list[typing.Any], "
                  "names: collections.abc.Sequence[str] | None) -> Batch"),
          "Return the sequences of all rows.\n\n"
          "``texts``: prompts included. ``names``: of their requests, if the engine names them.");
}

}  // namespace

void bind_local_steps(nb::module_& module) {
  bind_rows(module);
  module.def(
      "best_size",
      [](const std::vector<double>& gains, const Vector<const double>& seconds, double rate) {
        if (seconds.size() != gains.size() + 1) throw RequestError("give one number of seconds more than gains");
        return best_size(gains, as_span(seconds), rate);
      },
      "gains"_a, "seconds"_a, "rate"_a,
      "Return how many units to add to a pass, the best first, so that gains - rate * seconds is largest.\n\n"
      "``gains``: tokens that each unit is expected to bring, descending. ``seconds``: of the pass with 0, 1, ... "
      "units.\n"
      "``rate``: tokens a second that it must earn.");
  nb::class_<RowDrafts>(module, "RowDrafts", "Drafts of the rows of an engine's batch, one after another.")
      .def(nb::init<std::vector<std::uint32_t>, std::vector<Token>, std::vector<std::int32_t>, std::vector<double>,
                    std::optional<std::size_t>>(),
           "lengths"_a, "token_ids"_a, "parents"_a, "path_probabilities"_a, "num_drafted"_a = nb::none(),
           "Take nodes of every row, and of all nodes what :class:`~speculant_graph.types.Draft` holds.")
      .def("__len__", [](const RowDrafts& self) { return self.lengths.size(); })
      .def_prop_ro(
          "num_nodes", [](const RowDrafts& self) { return self.tokens.size(); }, "Nodes of all rows.")
      .def_ro("num_drafted", &RowDrafts::num_drafted, "Nodes that were drafted, those that were not kept included.")
      .def_ro("lengths", &RowDrafts::lengths, "Nodes of every row.")
      .def_ro("token_ids", &RowDrafts::tokens, "Of all nodes.")
      .def_ro("parents", &RowDrafts::parents, "Of all nodes; within a row 0 is its end, j + 1 its node j.")
      .def_ro("path_probabilities", &RowDrafts::probabilities, "Of all nodes; empty if the strategy has none.")
      .def_prop_ro(
          "largest_id",
          [](const RowDrafts& self) {
            return self.tokens.empty() ? Token{-1} : *std::max_element(self.tokens.begin(), self.tokens.end());
          },
          "The largest token id; -1 without nodes.")
      .def("lists", &RowDrafts::lists, nb::sig("def lists(self) -> list[list[int]]"),
           "Return the tokens of every row.");
  nb::class_<LocalSteps>(module, "LocalSteps", "The sessions of one drafter in this process, and their steps.")
      .def(nb::init<std::shared_ptr<Drafter>>(), "drafter"_a)
      .def("open", &LocalSteps::open, "session_id"_a, "tenant"_a, "memory"_a, "learns"_a,
           "Open a session; its number must not be in use.")
      .def(
          "end", [](LocalSteps& self, std::uint64_t id) { return as_array(self.end(id)); }, "session_id"_a,
          "End a session, if it is open; return what its memory has learned.")
      .def("changed", &LocalSteps::changed, "session_ids"_a, "texts"_a,
           nb::sig("def changed(self, session_ids: collections.abc.Sequence[int], "
                   "texts: list[typing.Any]) -> list[int]"),
           "Return the sessions whose texts do not continue what was taken of them: open those again.")
      .def(
          "draft",
          [](LocalSteps& self, std::vector<std::uint64_t> ids, const nb::list& texts,
             const std::vector<std::int64_t>& budgets, std::vector<std::uint64_t> seeds, std::vector<float> least,
             const nb::list& feedback, const DraftSettings& settings, std::uint64_t draft_id) {
            if (texts.size() != ids.size() || budgets.size() != ids.size()) {
              throw RequestError("give a text and a budget for each sequence");
            }
            Step step = self.begin(std::move(least), settings, draft_id);
            for (std::size_t index = 0; index < ids.size(); ++index) {
              self.add(step, ids[index], Text(texts[index]), budgets[index]);
            }
            step.request.seeds = std::move(seeds);
            std::vector<std::optional<LocalFeedback>> given;
            bool has_feedback = false;
            for (nb::handle each : feedback) {
              auto& one = given.emplace_back();
              if (each.is_none()) continue;
              const auto [id, nodes, rows] =
                  nb::cast<std::tuple<std::uint64_t, std::vector<std::uint32_t>, Table<const std::int64_t>>>(each);
              one = LocalFeedback{id, nodes, rows};
              has_feedback = true;
            }
            if (has_feedback) self.add_feedback(step, std::move(given));
            self.run(step);
            nb::list drafts;
            for (const Step::Part& part : step.parts) {
              drafts.append(as_draft(part.draft, part.distributions, settings.strategy, draft_id));
            }
            return drafts;
          },
          "session_ids"_a, "texts"_a, "budgets"_a, "seeds"_a, "least_probabilities"_a, "feedback"_a, "settings"_a,
          "draft_id"_a,
          nb::sig("def draft(self, session_ids: collections.abc.Sequence[int], texts: list[typing.Any], "
                  "budgets: collections.abc.Sequence[int], seeds: collections.abc.Sequence[int], "
                  "least_probabilities: collections.abc.Sequence[float], feedback: list[typing.Any], "
                  "settings: DraftSettings, draft_id: int) -> list[speculant_graph.types.Draft]"),
          "Draft for a batch whose texts continue what was taken of them.\n\n"
          "``feedback``: per sequence None, or the draft that was verified, nodes, and the target's top tokens after "
          "each.")
      .def(
          "draft_rows",
          [](LocalSteps& self, const Batch& batch, const std::vector<std::int64_t>& budgets,
             const DraftSettings& settings, float least, const std::optional<Vector<const double>>& seconds,
             double rate) {
            const std::size_t count = batch.texts.size();
            if (budgets.size() != count) throw RequestError("give a budget for each row");
            Step step = self.begin(std::vector<float>(count, least), settings, 1);
            for (std::size_t index = 0; index < count; ++index) {
              self.add(step, batch.rows.ids[index], *batch.texts[index], budgets[index]);
            }
            self.run(step);
            std::size_t num_drafted = 0;
            for (const Step::Part& part : step.parts) num_drafted += part.draft.size();
            if (seconds) keep_paying(step, as_span(*seconds), rate);
            RowDrafts drafts(step);
            drafts.num_drafted = num_drafted;
            return drafts;
          },
          "batch"_a, "budgets"_a, "settings"_a, "least_probability"_a, "seconds"_a.none(), "rate"_a,
          "Draft for the rows of an engine's batch, and keep what pays: nodes that bring more tokens than the seconds "
          "that\n"
          "they add to the pass would at ``rate``.\n\n"
          "``seconds``: of passes over 0, 1, ... tokens; None keeps whole drafts.");
}

}  // namespace speculant
