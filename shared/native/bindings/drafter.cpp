// Drafter and its settings: drafts for batches.
#include "drafter.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "draft_objects.hpp"
#include "graph_view.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

constexpr const char* kStrategies[] = {"", "greedy", "sampling", "adaptive", "tree", "nasd", "specexec", "beam"};

nb::list as_drafts(const DraftBatch& batch, Strategy strategy) {
  const DraftMaker& maker = DraftMaker::instance();
  const nb::object name = nb::steal(PyUnicode_InternFromString(kStrategies[static_cast<std::size_t>(strategy)]));
  const nb::object nothing = nb::make_tuple(), no_id = nb::cast(0);
  nb::list drafts;
  for (std::size_t index = 0; index < batch.drafts.size(); ++index) {
    const Draft& draft = batch.drafts[index];
    nb::object proposals = nothing;
    if (!batch.proposals[index].empty()) {
      const Distributions& all = batch.distributions_of(index);
      std::vector<std::uint64_t> bounds{0};
      std::vector<std::uint32_t> ids;
      std::vector<float> probabilities;
      for (const auto& [first, last] : batch.proposals[index]) {
        const auto from = static_cast<std::ptrdiff_t>(first), to = static_cast<std::ptrdiff_t>(last);
        ids.insert(ids.end(), all.tokens.begin() + from, all.tokens.begin() + to);
        probabilities.insert(probabilities.end(), all.probabilities.begin() + from, all.probabilities.begin() + to);
        bounds.push_back(ids.size());
      }
      proposals = maker.make_proposals(as_numbers(bounds), nb::cast(as_array(std::move(ids))),
                                       nb::cast(as_array(std::move(probabilities))));
    }
    drafts.append(maker.make({as_numbers(draft.tokens), as_numbers(draft.parents), as_numbers(draft.probabilities),
                              proposals, name, nb::bool_(batch.ended_early[index] != 0), no_id}));
  }
  return drafts;
}

/// Settings and drafts of Python.
struct PythonHost : DraftHost {
  PythonHost(nb::object settings_of, nb::object make_draft)
      : settings_of_(std::move(settings_of)), make_draft_(std::move(make_draft)) {}
  PythonHost(const PythonHost&) = delete;
  ~PythonHost() override {
    nb::gil_scoped_acquire acquire;
    settings_of_.reset(), make_draft_.reset();
  }
  DraftSettings settings_of(const std::string& options) override {
    nb::gil_scoped_acquire acquire;
    return nb::cast<DraftSettings>(settings_of_(nb::bytes(options.data(), options.size())));
  }
  bool draft(Drafter& drafter, Sequence& sequence, const DraftSettings& settings, int budget, Draft& draft) override {
    nb::gil_scoped_acquire acquire;
    const nb::object made = make_draft_(nb::cast(&drafter, nb::rv_policy::reference),
                                        nb::cast(&sequence, nb::rv_policy::reference), settings, budget);
    draft.tokens = nb::cast<std::vector<Token>>(made.attr("token_ids"));
    draft.parents = nb::cast<std::vector<std::int32_t>>(made.attr("parents"));
    draft.probabilities = nb::cast<std::vector<double>>(made.attr("path_probabilities"));
    return nb::cast<bool>(made.attr("terminated_early"));
  }

 private:
  nb::object settings_of_, make_draft_;
};

void bind_settings(nb::module_& module) {
  nb::class_<DraftSettings>(module, "DraftSettings",
                            "How to draft: strategy and siblings by their numbers on the wire.")
      .def(
          "__init__",
          [](DraftSettings* self, int strategy, const std::array<bool, kNumSources>& sources, bool is_cost_aware,
             bool is_calibrated, int max_depth, int max_branches, double min_path_probability,
             std::int64_t max_candidates, double temperature, const std::optional<std::array<double, 4>>& attention,
             bool is_coupled, int siblings, bool omits_proposals, int beam_width, int nasd_order, int filler_top_k,
             bool stops_if_unknown) {
            if (strategy < 1 || strategy > 7 || siblings < 0 || siblings > 2) {
              throw RequestError("no such strategy, or no such siblings");
            }
            std::optional<Attention> weights;
            if (attention) weights = {(*attention)[0], (*attention)[1], (*attention)[2], (*attention)[3]};
            new (self) DraftSettings{static_cast<Strategy>(strategy),
                                     {sources, is_cost_aware, is_calibrated, filler_top_k},
                                     max_depth,
                                     max_branches,
                                     min_path_probability,
                                     {max_candidates, temperature, weights},
                                     is_coupled,
                                     static_cast<Siblings>(siblings),
                                     omits_proposals,
                                     beam_width,
                                     nasd_order,
                                     stops_if_unknown};
          },
          nb::kw_only(), "strategy"_a, "sources"_a, "is_cost_aware"_a, "is_calibrated"_a, "max_depth"_a,
          "max_branches"_a, "min_path_probability"_a, "max_candidates"_a, "temperature"_a, "attention"_a.none(),
          "is_coupled"_a, "siblings"_a, "omits_proposals"_a, "beam_width"_a, "nasd_order"_a, "filler_top_k"_a,
          "stops_if_unknown"_a,
          "``sources``: session, corpus, skip-gram, learned, target rows. The last four are for drafts made in Python.")
      .def_prop_ro("strategy", [](const DraftSettings& self) { return static_cast<int>(self.strategy); })
      .def_ro("max_depth", &DraftSettings::max_depth)
      .def_ro("max_branches", &DraftSettings::max_branches)
      .def_ro("beam_width", &DraftSettings::beam_width)
      .def_ro("nasd_order", &DraftSettings::storage_order)
      .def_ro("stops_if_unknown", &DraftSettings::stops_if_unknown);
}

}  // namespace

void bind_drafter(nb::module_& module) {
  bind_settings(module);
  module.def(
      "draft_from_graph",
      [](const GraphView& graph, const std::vector<std::pair<std::int64_t, std::int64_t>>& contexts,
         const std::vector<int>& budgets, const std::vector<std::uint64_t>& seeds,
         const std::vector<std::uint64_t>& positions, const DraftSettings& settings, std::size_t max_entries) {
        if (budgets.size() != contexts.size() || seeds.size() != contexts.size() ||
            positions.size() != contexts.size()) {
          throw RequestError("give a context, a budget, a seed and a position for each sequence");
        }
        std::vector<GraphDraft> wanted;
        for (std::size_t index = 0; index < contexts.size(); ++index) {
          const Context context{contexts[index].first, contexts[index].second};
          if (context.order != 0 && !graph.trie.has_context(context))
            throw RequestError("the graph has no such context");
          wanted.push_back(
              {.context = context, .budget = budgets[index], .seed = seeds[index], .position = positions[index]});
        }
        DraftBatch batch;
        {
          nb::gil_scoped_release release;
          batch = draft_from_graph(graph.trie, std::move(wanted), settings, max_entries);
        }
        return as_drafts(batch, settings.strategy);
      },
      "graph"_a, "contexts"_a, "budgets"_a, "seeds"_a, "positions"_a, "settings"_a, "max_entries"_a,
      nb::sig("def draft_from_graph(graph: Trie, contexts: collections.abc.Sequence[tuple[int, int]], "
              "budgets: collections.abc.Sequence[int], seeds: collections.abc.Sequence[int], "
              "positions: collections.abc.Sequence[int], settings: DraftSettings, max_entries: int) "
              "-> list[speculant_graph.types.Draft]"),
      "Draft by greedy or sampling after contexts (order, record); see :meth:`Drafter.draft`.");
  nb::class_<Drafter>(module, "Drafter", "Drafts from one graph, and from what sequences accept.")
      .def(
          "__init__",
          [](Drafter* self, const GraphView* graph, Token vocabulary_size, std::shared_ptr<Calibration> calibration,
             std::int64_t max_session_tokens, int num_threads, nb::object settings_of, nb::object make_draft) {
            new (self) Drafter(graph == nullptr ? Trie() : graph->trie, vocabulary_size, std::move(calibration),
                               max_session_tokens, num_threads,
                               std::make_unique<PythonHost>(std::move(settings_of), std::move(make_draft)));
          },
          "graph"_a.none(), "vocabulary_size"_a, "calibration"_a, "max_session_tokens"_a, "num_threads"_a,
          "settings_of"_a, "make_draft"_a, nb::keep_alive<1, 2>(),
          "Draft from a graph, or from none; ids below ``vocabulary_size`` are tokens.\n\n"
          "``num_threads``: that draft for a batch; drafts are the same on any number.\n"
          "``settings_of`` returns the settings that a StrategyOptions (bytes) asks for. ``make_draft`` makes the\n"
          "drafts that are not the core's own: called with this drafter, a sequence, settings and a budget, it "
          "returns\n"
          "a ``Draft``.")
      .def(
          "open",
          [](Drafter& self, std::shared_ptr<LearnedMemory> memory, bool learns, std::vector<double> costs) {
            return exclusively([&] { return self.open(std::move(memory), learns, std::move(costs)); });
          },
          "memory"_a, "learns"_a, "costs"_a,
          "Begin a sequence without tokens. ``learns``: later sequences may learn from it; ``costs``: of verifying n\n"
          "tokens relative to one, none if it is free.")
      .def_ro("vocabulary_size", &Drafter::vocabulary_size)
      .def(
          "accept",
          [](Drafter& self, Sequence& sequence, const Ids& ids, bool is_prompt) {
            exclusively([&] { self.accept(sequence, tokens_of(as_span(ids), self.vocabulary_size), is_prompt); });
          },
          "sequence"_a, "token_ids"_a, "is_prompt"_a, "Add tokens to a sequence, and learn from those of no prompt.")
      .def(
          "add_rows",
          [](Drafter& self, Sequence& sequence, const Ids& nodes, const Table<const std::int64_t>& rows) {
            if (rows.shape(0) != nodes.size()) throw RequestError("give one row per node");
            exclusively([&] {
              sequence.add_rows(as_span(nodes), tokens_of(as_span(rows), self.vocabulary_size), rows.shape(1));
            });
          },
          "sequence"_a, "nodes"_a, "rows"_a,
          "Take the target's top tokens after nodes of the latest draft, to be learned with the tokens that come next.")
      .def(
          "agrees",
          [](const Drafter& self, const Sequence& sequence, std::int64_t position, const Ids& ids) {
            return exclusively(
                [&] { return sequence.agrees(position, tokens_of(as_span(ids), self.vocabulary_size)); });
          },
          "sequence"_a, "position"_a, "token_ids"_a,
          "Return whether these are a sequence's tokens from ``position`` on, as far as both are known.")
      .def(
          "draft",
          [](Drafter& self, const std::vector<Sequence*>& sequences, const std::vector<int>& budgets,
             const std::vector<std::uint64_t>& seeds, const DraftSettings& settings, std::size_t max_entries) {
            if (budgets.size() != sequences.size() || seeds.size() != sequences.size()) {
              throw RequestError("give a budget and a seed for each sequence");
            }
            const DraftBatch batch = exclusively([&] {
              std::vector<DraftRequest> requests;
              for (std::size_t index = 0; index < sequences.size(); ++index) {
                Sequence* sequence = sequences[index];
                if (sequence == nullptr) throw RequestError("None is no sequence");
                requests.push_back(
                    {sequence, budgets[index], seeds[index], static_cast<std::uint64_t>(sequence->size())});
              }
              return self.draft(requests, settings, max_entries);
            });
            return as_drafts(batch, settings.strategy);
          },
          "sequences"_a, "budgets"_a, "seeds"_a, "settings"_a, "max_entries"_a,
          nb::sig("def draft(self, sequences: collections.abc.Sequence[Sequence], "
                  "budgets: collections.abc.Sequence[int], seeds: collections.abc.Sequence[int], "
                  "settings: DraftSettings, max_entries: int) "
                  "-> list[speculant_graph.types.Draft]"),
          "Draft for a batch: lengths, whether drafts ended early, tokens, parents, path probabilities, sizes of the "
          "q\n"
          "of each node, their tokens and their probabilities. Drafts end where another q may not fit into "
          "``max_entries``.")
      .def(
          "draft_after",
          [](Drafter& self, const std::vector<Ids>& contexts, const std::vector<int>& budgets,
             const std::vector<std::uint64_t>& seeds, const std::vector<std::uint64_t>& positions,
             const DraftSettings& settings, std::size_t max_entries) {
            const std::size_t count = contexts.size();
            if (budgets.size() != count || seeds.size() != count || positions.size() != count) {
              throw RequestError("give a budget, a seed and a position for each sequence");
            }
            const DraftBatch batch = exclusively([&] {
              std::vector<std::vector<Token>> tokens;
              std::vector<DraftRequest> requests;
              for (std::size_t index = 0; index < count; ++index) {
                tokens.push_back(tokens_of(as_span(contexts[index]), self.vocabulary_size));
                requests.push_back({nullptr, budgets[index], seeds[index], positions[index]});
              }
              return self.draft_after(tokens, std::move(requests), settings, max_entries);
            });
            return as_drafts(batch, settings.strategy);
          },
          "contexts"_a, "budgets"_a, "seeds"_a, "positions"_a, "settings"_a, "max_entries"_a,
          nb::sig("def draft_after(self, contexts: collections.abc.Sequence[numpy.typing.NDArray[numpy.int64]], "
                  "budgets: collections.abc.Sequence[int], seeds: collections.abc.Sequence[int], "
                  "positions: collections.abc.Sequence[int], settings: DraftSettings, max_entries: int) "
                  "-> list[speculant_graph.types.Draft]"),
          "Draft the same for sequences that are not open, of which these are the last tokens; ``positions`` are\n"
          "those of the first tokens drafted.")
      .def(
          "propose",
          [](Drafter& self, const Sequence& sequence, const Ids& path, std::size_t limit) {
            std::vector<Token> tokens;
            std::vector<double> probabilities;
            exclusively([&] {
              self.propose(sequence, tokens_of(as_span(path), self.vocabulary_size), limit, tokens, probabilities);
            });
            return nb::make_tuple(tokens, probabilities);
          },
          "sequence"_a, "path"_a, "limit"_a,
          nb::sig("def propose(self, sequence: Sequence, path: numpy.typing.NDArray[numpy.int64], limit: int) -> "
                  "tuple[list[int], list[float]]"),
          "Return what may follow a path from the end of a sequence and how probable it is, best first.");
}

}  // namespace speculant
