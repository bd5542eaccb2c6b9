// What drafts are made from beside the graph, and the drafter: memories, calibrations, sequences.
#include "drafter.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "arrays.hpp"
#include "draft_objects.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

nb::list as_drafts(const DraftBatch& batch, const std::string& strategy) {
  nb::list drafts;
  for (const Draft& draft : batch.drafts) drafts.append(as_draft(draft, &batch.distributions, strategy, 0));
  return drafts;
}

/// Fill a table from one of the same shape.
template <class Struct>
void fill(std::vector<Struct>& rows, const Table<const double>& values) {
  if (values.shape(0) != rows.size() || values.shape(1) != sizeof(Struct) / sizeof(double)) {
    throw std::invalid_argument("a table is of another shape");
  }
  std::copy_n(values.data(), values.size(), reinterpret_cast<double*>(rows.data()));
}

/// Python's function that reads options.
ReadSettings read_by(nb::object function) {
  const auto free = [](nb::object* each) {
    nb::gil_scoped_acquire acquire;
    delete each;
  };
  const std::shared_ptr<nb::object> kept(new nb::object(std::move(function)), free);
  return [kept](const std::string& options) {
    nb::gil_scoped_acquire acquire;
    return nb::cast<DraftSettings>((*kept)(nb::bytes(options.data(), options.size())));
  };
}

/// A copy of a table, a part at a time: nobody waits for all of it. Rates of different moments are as good.
template <class Row>
std::vector<Row> copy_in_parts(FairLock& lock, const std::vector<Row>& table) {
  constexpr std::size_t kPart = 16'384;  // rows, 393 KB of bins: what is copied while the lock is held; a guess
  std::vector<Row> copied(table.size());
  for (std::size_t first = 0; first < table.size(); first += kPart) {
    Shared hold(lock);
    std::copy_n(table.begin() + static_cast<std::ptrdiff_t>(first), std::min(kPart, table.size() - first),
                copied.begin() + static_cast<std::ptrdiff_t>(first));
  }
  return copied;
}

void bind_calibration(nb::module_& module) {
  nb::class_<Calibration>(module, "Calibration", "How reliable each kind of context is; learned while drafting.")
      .def(nb::init<>(), "Make tables that know nothing yet.")
      .def_prop_ro(
          "weights",
          [](const Calibration& self) {
            return as_table<double>(without_gil([&] { return Shared(self.lock), self.weights; }));
          },
          nb::rv_policy::move, "A copy of (visits, passed on) of every kind of context, shape ``[kinds, 2]``.")
      .def_prop_ro(
          "bins",
          [](const Calibration& self) {
            return as_table<double>(without_gil([&] { return copy_in_parts(self.lock, self.bins); }));
          },
          nb::rv_policy::move,
          "A copy of (visits, sum of probabilities, hits) of every bin, shape ``[ranges * supports, 3]``.")
      .def(
          "restore",
          [](Calibration& self, const Table<const double>& weights, const Table<const double>& bins) {
            without_gil([&] {
              Exclusive hold(self.lock);
              fill(self.weights, weights);
              fill(self.bins, bins);
            });
          },
          "weights"_a, "bins"_a, "Take tables of these shapes. ValueError where they are of others.")
      .def(
          "copy",
          [](const Calibration& self) {
            return without_gil([&] { return Shared(self.lock), std::make_shared<Calibration>(self); });
          },
          "Return tables that change apart from these.");
}

/// The rows of a memory that are kept, a part of the table at a time.
nb::object target_rows_of(const LearnedMemory& memory) {
  constexpr std::size_t kPart = 4'096;  // slots, 295 KB: what is copied while the lock is held; a guess
  std::vector<std::int64_t> slots, keys;
  std::vector<Token> rows;
  without_gil([&] {
    for (std::size_t first = 0; first < TargetRows::kNumSlots; first += kPart) {
      Shared hold(memory.lock);
      const auto& all = memory.rows.slots();
      for (std::size_t index = first; index < std::min(first + kPart, all.size()); ++index) {
        const TargetRows::Slot& slot = all[index];
        if (slot.key < 0) continue;
        slots.push_back(static_cast<std::int64_t>(index));
        keys.push_back(slot.key);
        for (const auto& row : slot.rows) rows.insert(rows.end(), row.begin(), row.end());
      }
    }
  });
  return nb::make_tuple(as_array(std::move(slots)), as_array(std::move(keys)), as_array(std::move(rows)));
}

void restore_target_rows(LearnedMemory& memory, const Ids& slots, const Ids& keys, const Vector<const Token>& rows) {
  constexpr std::size_t kTokens = std::size_t{kRowDepth} * kRowWidth;
  if (keys.size() != slots.size() || rows.size() != slots.size() * kTokens) {
    throw RequestError("slots, keys and rows are not of one table");
  }
  without_gil([&] {
    for (std::size_t index = 0; index < slots.size(); ++index) {
      if (static_cast<std::uint64_t>(slots(index)) >= TargetRows::kNumSlots) throw std::out_of_range("no such slot");
    }
    Exclusive hold(memory.lock);
    for (std::size_t index = 0; index < slots.size(); ++index) {
      TargetRows::Slot slot{keys(index), {}};
      for (std::size_t each = 0; each < kTokens; ++each) {
        slot.rows[each / kRowWidth][each % kRowWidth] = rows(index * kTokens + each);
      }
      memory.rows.restore(static_cast<std::size_t>(slots(index)), slot);
    }
  });
}

/// What one tenant's sequences accepted, and sequences.
void bind_sequences(nb::module_& module) {
  nb::class_<LearnedMemory>(module, "LearnedMemory", "What one tenant's sequences accepted.")
      .def(nb::init<std::int64_t>(), "max_tokens"_a)
      .def(
          "__len__",
          [](const LearnedMemory& self) { return without_gil([&] { return Shared(self.lock), self.history.size(); }); })
      .def(
          "add",
          [](LearnedMemory& self, const Ids& ids) {
            without_gil([&] { self.add(tokens_of(as_span(ids), kMaxVocabulary)); });
          },
          "token_ids"_a, "Add a text; no match runs across its ends.")
      .def(
          "target_rows", &target_rows_of,
          nb::sig(
              "def target_rows(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], "
              "numpy.typing.NDArray[numpy.int32]]"),
          "Return the target's rows that its sequences share, for :meth:`restore_target_rows`: slots, their keys, and\n"
          "their rows one after another.")
      .def("restore_target_rows", &restore_target_rows, "slots"_a, "keys"_a, "rows"_a,
           "Fill slots as :meth:`target_rows` returned them. IndexError where there is none.")
      .def(
          "take_is_changed",
          [](LearnedMemory& self) {
            return without_gil([&] { return Exclusive(self.lock), std::exchange(self.rows.is_changed, false); });
          },
          "Return whether rows of the target came since the last call.")
      .def_prop_rw(
          "is_forgotten", [](const LearnedMemory& self) { return self.is_forgotten.load(); },
          [](LearnedMemory& self, bool is_forgotten) { self.is_forgotten = is_forgotten; },
          "Whether nothing is added any more by sequences that end.");
  nb::class_<Sequence>(module, "Sequence", "One sequence that is drafted for; :meth:`Drafter.open` begins one.")
      .def(
          "finish", [](Sequence& self) { return as_array(without_gil([&] { return self.finish(); })); },
          "End: add what followed the prompt, after the prompt's last tokens, to the memory if later sequences may\n"
          "learn from it, and return it.")
      .def_prop_ro(
          "num_bytes",
          [](Sequence& self) { return without_gil([&] { return Exclusive(self.lock), self.num_bytes(); }); },
          "Memory that is its own.");
}

void bind_settings(nb::module_& module) {
  nb::class_<DraftSettings>(module, "DraftSettings", "How to draft; siblings by their number on the wire.")
      .def(
          "__init__",
          [](DraftSettings* self, std::string strategy, const std::string& method, bool fills_budget,
             const std::array<bool, kNumSources>& sources, int max_depth, int max_branches, std::int64_t max_candidates,
             double temperature, bool is_coupled, int siblings, bool omits_proposals) {
            const auto number = std::find(std::begin(kMethods), std::end(kMethods), method) - std::begin(kMethods);
            if (number == std::ssize(kMethods) || siblings < 0 || siblings > 2) {
              throw RequestError("no such method, or no such siblings");
            }
            const auto found = static_cast<Method>(number);
            new (self) DraftSettings{std::move(strategy),
                                     found,
                                     fills_budget,
                                     {sources, found == Method::kBestFirst},
                                     max_depth,
                                     max_branches,
                                     {max_candidates, temperature},
                                     is_coupled,
                                     static_cast<Siblings>(siblings),
                                     omits_proposals};
          },
          nb::kw_only(), "strategy"_a, "method"_a, "fills_budget"_a, "sources"_a, "max_depth"_a, "max_branches"_a,
          "max_candidates"_a, "temperature"_a, "is_coupled"_a, "siblings"_a, "omits_proposals"_a,
          "``strategy``: as drafts name it. ``method``: one of :func:`methods`. ``fills_budget``: whatever least\n"
          "probability is asked for. ``sources``: session, corpus, skip-gram, learned, target rows, neural.");
}

}  // namespace

void bind_drafter(nb::module_& module) {
  module.attr("ROW_WIDTH") = kRowWidth;
  module.attr("ROW_DEPTH") = kRowDepth;
  module.def(
      "methods", [] { return std::vector<std::string>(std::begin(kMethods), std::end(kMethods)); },
      "How strategies may draft, by name.");
  bind_calibration(module);
  bind_sequences(module);
  bind_settings(module);
  nb::class_<Drafter>(module, "Drafter", "Drafts from one graph, and from what sequences accept.")
      .def(
          "__init__",
          [](Drafter* self, const GraphView* graph, Token vocabulary_size, std::shared_ptr<Calibration> calibration,
             std::int64_t max_session_tokens, int num_threads, nb::object settings_of) {
            new (self)
                Drafter(graph == nullptr ? Graph{} : Graph{graph->trie, graph->model}, vocabulary_size,
                        std::move(calibration), max_session_tokens, num_threads, read_by(std::move(settings_of)));
          },
          "graph"_a.none(), "vocabulary_size"_a, "calibration"_a, "max_session_tokens"_a, "num_threads"_a,
          "settings_of"_a, nb::keep_alive<1, 2>(),
          "Draft from a graph, or from none; ids below ``vocabulary_size`` are tokens.\n\n"
          "``num_threads``: that draft trees for a batch; drafts are the same on any number.\n"
          "``settings_of`` returns the settings that a StrategyOptions (bytes) asks for.")
      .def(
          "open",
          [](Drafter& self, std::shared_ptr<LearnedMemory> memory, bool learns) {
            return without_gil([&] { return self.open(std::move(memory), learns); });
          },
          "memory"_a, "learns"_a, "Begin a sequence without tokens. ``learns``: later sequences may learn from it.")
      .def_prop_ro(
          "num_read", [](Drafter& self) { return without_gil([&] { return self.num_read(); }); },
          "Records of the graph that calls which have ended read for the most frequent successors of contexts.")
      .def(
          "begin_after",
          [](Drafter& self, const Ids& ids, const DraftSettings& settings) {
            return without_gil(
                [&] { return self.begin_after(tokens_of(as_span(ids), self.vocabulary_size), settings); });
          },
          "token_ids"_a, "settings"_a,
          "Begin a sequence of which these are the last tokens, to draft once so; nothing of it is remembered.")
      .def(
          "accept",
          [](Drafter& self, Sequence& sequence, const Ids& ids, bool is_prompt) {
            without_gil([&] { self.accept(sequence, tokens_of(as_span(ids), self.vocabulary_size), is_prompt); });
          },
          "sequence"_a, "token_ids"_a, "is_prompt"_a, "Add tokens to a sequence, and learn from those of no prompt.")
      .def(
          "add_rows",
          [](Drafter& self, Sequence& sequence, const Ids& nodes, const Table<const std::int64_t>& rows) {
            if (rows.shape(0) != nodes.size()) throw RequestError("give one row per node");
            without_gil([&] {
              Exclusive hold(sequence.lock);
              sequence.add_rows(as_span(nodes), tokens_of(as_span(rows), self.vocabulary_size), rows.shape(1));
            });
          },
          "sequence"_a, "nodes"_a, "rows"_a,
          "Take the target's top tokens after nodes of the latest draft, to be learned with the tokens that come next.")
      .def(
          "draft",
          [](Drafter& self, const std::vector<Sequence*>& sequences, const std::vector<int>& budgets,
             const std::vector<std::uint64_t>& seeds, const std::vector<std::uint64_t>& positions,
             const std::vector<double>& least, const DraftSettings& settings, std::size_t max_entries) {
            const std::size_t count = sequences.size();
            if (budgets.size() != count || seeds.size() != count || least.size() != count ||
                (!positions.empty() && positions.size() != count)) {
              throw RequestError(
                  "give a budget, a seed and a least probability for each sequence, and a position for each or for "
                  "none");
            }
            const DraftBatch batch = without_gil([&] {
              std::vector<DraftRequest> requests;
              for (std::size_t index = 0; index < count; ++index) {
                if (sequences[index] == nullptr) throw RequestError("None is no sequence");
                requests.push_back({sequences[index], budgets[index], seeds[index]});
                requests.back().least_probability = least[index];
                if (!positions.empty()) requests.back().position = positions[index];
              }
              return self.draft(requests, settings, max_entries);
            });
            return as_drafts(batch, settings.strategy);
          },
          "sequences"_a, "budgets"_a, "seeds"_a, "positions"_a, "least_probabilities"_a, "settings"_a, "max_entries"_a,
          nb::sig("def draft(self, sequences: collections.abc.Sequence[Sequence], "
                  "budgets: collections.abc.Sequence[int], seeds: collections.abc.Sequence[int], "
                  "positions: collections.abc.Sequence[int], least_probabilities: collections.abc.Sequence[float], "
                  "settings: DraftSettings, max_entries: int) "
                  "-> list[speculant_graph.types.Draft]"),
          "Draft for a batch. Drafts end where another q may not fit into ``max_entries``. ``positions`` are those of "
          "the\n"
          "first tokens drafted; none: where the sequences end.");
}

}  // namespace speculant
