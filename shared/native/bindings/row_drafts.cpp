// The rows of an engine's batch: their sequences, and the kept parts of their drafts.
#include "row_drafts.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "budget.hpp"

namespace speculant {

using namespace nb::literals;

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
  // No path is more probable than its parent's, and the sort is stable, so parents stay before their children.
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

void bind_rows(nb::module_& module) {
  nb::class_<UnreadRow>(module, "UnreadRow", "The end of a sequence that ended with text that no drafter has read.")
      .def_ro("id", &UnreadRow::id, "The sequence.")
      .def_ro("begun", &UnreadRow::begun, "Length of its text when it began.")
      .def_ro("read", &UnreadRow::read, "Length of its text when it was last read; 0 if it never was.")
      .def_ro("size", &UnreadRow::size, "Length of its whole text.")
      .def_ro("tail", &UnreadRow::tail, "Its last tokens.");
  nb::class_<Batch>(module, "Batch", "The rows of a batch as numbered sequences. Keeps references to their texts.")
      .def(
          "__init__",
          [](Batch* self, const std::vector<std::uint64_t>& ids, const nb::list& texts) {
            if (ids.size() != texts.size()) throw RequestError("give one sequence for each text");
            new (self) Batch();
            for (nb::handle text : texts) self->texts.push_back(std::make_unique<Text>(text));
            self->rows.ids = ids;
            self->given = texts;
          },
          "session_ids"_a, "texts"_a,
          nb::sig("def __init__(self, session_ids: collections.abc.Sequence[int], "
                  "texts: list[typing.Any]) -> None"),
          "Take known sequences and their whole texts.")
      .def_prop_ro(
          "session_ids", [](const Batch& self) { return self.rows.ids; }, "Per row, its sequence.")
      .def_prop_ro(
          "texts", [](const Batch& self) { return self.given; }, nb::sig("def texts(self) -> list[typing.Any]"),
          "The texts as given.")
      .def_prop_ro(
          "begun", [](const Batch& self) { return self.rows.begun; }, "Rows that begin a sequence.")
      .def_prop_ro(
          "ended", [](const Batch& self) { return self.rows.ended; }, "Sequences that no row continues.")
      .def_prop_ro(
          "unread", [](const Batch& self) { return self.rows.unread; },
          "The ends of those ended sequences whose text was not all read.")
      .def_prop_ro(
          "is_changed", [](const Batch& self) { return !self.rows.begun.empty() || !self.rows.ended.empty(); },
          "Whether a sequence has begun or ended.")
      .def_prop_ro(
          "num_new", [](const Batch& self) { return self.rows.num_new; },
          "Number of new tokens in continued sequences.");
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
          "``texts``: whole texts, including prompts. ``names``: names of their requests, if the engine names them.")
      .def(
          "follow",
          [](RowTracker& self, const nb::list& texts) {
            if (texts.size() != self.num_rows()) return false;
            std::vector<std::int32_t> copy;
            for (std::size_t index = 0; index < texts.size(); ++index) {
              const Text text(texts[index]);
              copy.clear();
              if (!self.follow(index, {text.ids(copy)})) return false;
            }
            return true;
          },
          "texts"_a, nb::sig("def follow(self, texts: list[typing.Any]) -> bool"),
          "Return whether the rows are those of the latest batch, in order, and store their texts.\n\n"
          "If they are, this replaces :meth:`match`, at a fraction of its time. If not, some texts may have been "
          "stored,\n"
          "and :meth:`match` must be called next.\n"
          "``texts``: whole texts of unnamed requests.")
      .def("prompt_lengths", &RowTracker::prompt_lengths,
           "For each row of the latest batch that was never read, the length of its text when it began; otherwise 0.")
      .def("mark_prompts_read", &RowTracker::mark_prompts_read,
           "Record that the drafter has read the texts with which the latest batch's sequences began.")
      .def("mark_read", &RowTracker::mark_read, "Record that the drafter has read the texts of the latest batch.");
  module.def(
      "best_size",
      [](const std::vector<double>& gains, const Vector<const double>& seconds, double rate) {
        if (seconds.size() != gains.size() + 1) throw RequestError("give one number of seconds more than gains");
        return best_size(gains, as_span(seconds), rate);
      },
      "gains"_a, "seconds"_a, "rate"_a,
      "Return the number of units to add to a pass, the best first, that maximises gains - rate * seconds.\n\n"
      "``gains``: expected tokens of each unit, descending. ``seconds``: durations of the pass with 0, 1, ... units.\n"
      "``rate``: tokens per second that it must earn.");
  nb::class_<RowDrafts>(module, "RowDrafts", "Drafts of the rows of an engine's batch, concatenated.")
      .def(nb::init<std::vector<std::uint32_t>, std::vector<Token>, std::vector<std::int32_t>, std::vector<double>,
                    std::optional<std::size_t>>(),
           "lengths"_a, "token_ids"_a, "parents"_a, "path_probabilities"_a, "num_drafted"_a = nb::none(),
           "Take the number of nodes of every row, and the fields of :class:`~speculant_graph.types.Draft` for all "
           "nodes.")
      .def("__len__", [](const RowDrafts& self) { return self.lengths.size(); })
      .def_prop_ro(
          "num_nodes", [](const RowDrafts& self) { return self.tokens.size(); }, "Number of nodes of all rows.")
      .def_ro("num_drafted", &RowDrafts::num_drafted, "Number of drafted nodes, including those that were not kept.")
      .def_ro("lengths", &RowDrafts::lengths, "Number of nodes of every row.")
      .def_ro("token_ids", &RowDrafts::tokens, "Token ids of all nodes.")
      .def_ro("parents", &RowDrafts::parents, "Parents of all nodes; within a row 0 is its end, j + 1 its node j.")
      .def_ro("path_probabilities", &RowDrafts::probabilities,
              "Path probabilities of all nodes; empty if the strategy has none.")
      .def_prop_ro(
          "largest_id",
          [](const RowDrafts& self) {
            return self.tokens.empty() ? Token{-1} : *std::max_element(self.tokens.begin(), self.tokens.end());
          },
          "The largest token id; -1 without nodes.")
      .def("lists", &RowDrafts::lists, nb::sig("def lists(self) -> list[list[int]]"),
           "Return the tokens of every row.");
}

}  // namespace speculant
