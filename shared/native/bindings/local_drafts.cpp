// Drafts in this process: for single sequences, and for the rows of an engine's batch.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "draft_objects.hpp"
#include "local_steps.hpp"
#include "row_drafts.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

nb::list drafts_of(const Step& step) {
  nb::list drafts;
  for (const Step::Part& part : step.parts) {
    drafts.append(as_draft(part.draft, part.distributions, step.settings->strategy, step.draft_id));
  }
  return drafts;
}

}  // namespace

void bind_local_steps(nb::module_& module) {
  nb::class_<LocalSteps>(module, "LocalSteps", "The sessions of one drafter in this process, and their steps.")
      .def(nb::init<std::shared_ptr<Drafter>>(), "drafter"_a)
      .def("__len__", &LocalSteps::size)
      .def("open", &LocalSteps::open, "session_id"_a, "memory"_a, "learns"_a,
           "Open a session; its number must not be in use. ``learns``: later sequences may learn from it.")
      .def(
          "end", [](LocalSteps& self, std::uint64_t id) { return as_array(self.end(id)); }, "session_id"_a,
          "End a session, if it is open; return what its memory has learned.")
      .def(
          "accept",
          [](LocalSteps& self, std::uint64_t id, const Ids& ids, bool is_prompt) {
            self.accept(id, as_span(ids), is_prompt);
          },
          "session_id"_a, "token_ids"_a, "is_prompt"_a,
          "Add tokens to a sequence, and learn from tokens after the prompt.")
      .def(
          "add_top_k",
          [](LocalSteps& self, std::uint64_t id, const Ids& nodes, const Table<const std::int64_t>& rows) {
            self.add_top_k(id, as_span(nodes), rows);
          },
          "session_id"_a, "nodes"_a, "rows"_a,
          "Take the target's top tokens after nodes of the latest draft; they are learned with the next tokens.")
      .def("num_bytes", &LocalSteps::num_bytes, "session_id"_a, "Return a sequence's own memory in bytes.")
      .def("changed", &LocalSteps::changed, "session_ids"_a, "texts"_a,
           nb::sig("def changed(self, session_ids: collections.abc.Sequence[int], "
                   "texts: list[typing.Any]) -> list[int]"),
           "Return the sessions whose texts do not continue their known tokens; open these again.")
      .def(
          "draft",
          [](LocalSteps& self, const std::vector<std::uint64_t>& ids, const nb::list& texts,
             const std::vector<std::int64_t>& budgets, const std::vector<std::uint64_t>& seeds,
             const std::vector<double>& least, const nb::list& feedback, const DraftSettings& settings,
             std::size_t max_entries, std::uint64_t draft_id) {
            const std::size_t count = ids.size();
            if (texts.size() != count || budgets.size() != count || seeds.size() != count || least.size() != count ||
                feedback.size() != count) {
              throw RequestError("give a text, a budget, a seed, a least probability and feedback for each sequence");
            }
            Step step = self.begin(settings, draft_id, max_entries);
            std::vector<std::optional<LocalFeedback>> told(count);
            for (std::size_t index = 0; index < count; ++index) {
              SequenceDraft& wanted = self.add(step, ids[index], Text(texts[index]), budgets[index]);
              wanted.seed = seeds[index], wanted.least_probability = least[index];
              if (feedback[index].is_none()) continue;
              const auto [id, nodes, rows] =
                  nb::cast<std::tuple<std::uint64_t, std::vector<std::uint32_t>, Table<const std::int64_t>>>(
                      feedback[index]);
              told[index] = LocalFeedback{id, nodes, rows};
            }
            if (std::any_of(told.begin(), told.end(), [](const auto& each) { return each.has_value(); })) {
              self.add_feedback(step, std::move(told), ids);
            }
            self.run(step, ids);
            return drafts_of(step);
          },
          "session_ids"_a, "texts"_a, "budgets"_a, "seeds"_a, "least_probabilities"_a, "feedback"_a, "settings"_a,
          "max_entries"_a, "draft_id"_a,
          nb::sig("def draft(self, session_ids: collections.abc.Sequence[int], texts: list[typing.Any], "
                  "budgets: collections.abc.Sequence[int], seeds: collections.abc.Sequence[int], "
                  "least_probabilities: collections.abc.Sequence[float], feedback: list[typing.Any], "
                  "settings: DraftSettings, max_entries: int, draft_id: int) "
                  "-> list[speculant_graph.types.Draft]"),
          "Draft for a batch.\n\n"
          "``texts`` continue the known tokens of their sequences; an empty text adds no tokens. ``feedback``: per "
          "sequence\n"
          "None, or the verified draft, nodes, and the target's top tokens after each. A draft ends where another q "
          "may\n"
          "not fit into ``max_entries``.")
      .def(
          "draft_contexts",
          [](LocalSteps& self, const nb::list& contexts, const std::vector<std::int64_t>& budgets,
             const std::vector<std::uint64_t>& seeds, const std::vector<std::uint64_t>& positions,
             const DraftSettings& settings, std::size_t max_entries) {
            const std::size_t count = contexts.size();
            if (budgets.size() != count || seeds.size() != count || positions.size() != count) {
              throw RequestError("give a budget, a seed and a position for each context");
            }
            Step step = self.begin(settings, 0, max_entries);
            for (std::size_t index = 0; index < count; ++index) {
              self.add_stateless(step, Text(contexts[index]), budgets[index], positions[index]).seed = seeds[index];
            }
            self.run(step, {});
            return drafts_of(step);
          },
          "contexts"_a, "budgets"_a, "seeds"_a, "positions"_a, "settings"_a, "max_entries"_a,
          nb::sig("def draft_contexts(self, contexts: list[typing.Any], budgets: collections.abc.Sequence[int], "
                  "seeds: collections.abc.Sequence[int], positions: collections.abc.Sequence[int], "
                  "settings: DraftSettings, max_entries: int) -> list[speculant_graph.types.Draft]"),
          "Draft for temporary sequences that end in these tokens. ``positions`` are those of the first drafted "
          "tokens.")
      .def(
          "draft_rows",
          [](LocalSteps& self, const Batch& batch, const std::vector<std::int64_t>& budgets,
             const DraftSettings& settings, float least, const std::optional<Vector<const double>>& seconds,
             double rate) {
            const std::size_t count = batch.texts.size();
            if (budgets.size() != count) throw RequestError("give a budget for each row");
            Step step = self.begin(settings, 1);
            for (std::size_t index = 0; index < count; ++index) {
              self.add(step, batch.rows.ids[index], *batch.texts[index], budgets[index]).least_probability = least;
            }
            self.run(step, batch.rows.ids);
            std::size_t num_drafted = 0;
            for (const Step::Part& part : step.parts) num_drafted += part.draft.size();
            if (seconds) keep_paying(step, as_span(*seconds), rate);
            RowDrafts drafts(step);
            drafts.num_drafted = num_drafted;
            return drafts;
          },
          "batch"_a, "budgets"_a, "settings"_a, "least_probability"_a, "seconds"_a.none(), "rate"_a,
          "Draft for the rows of an engine's batch, and keep the nodes that pay: their expected tokens exceed those "
          "that\n"
          "the seconds they add to the pass must earn at ``rate``.\n\n"
          "``seconds``: durations of passes over 0, 1, ... tokens; None keeps whole drafts.");
}

}  // namespace speculant
