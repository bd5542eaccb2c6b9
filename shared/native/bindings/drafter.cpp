// The drafter, and its inputs besides the graph: memories, calibrations, settings.
#include "drafter.hpp"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "arrays.hpp"
#include "mixer/training.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

/// Fill a table from one of the same shape.
template <class Struct>
void fill(std::vector<Struct>& rows, const Table<const double>& values) {
  if (values.shape(0) != rows.size() || values.shape(1) != sizeof(Struct) / sizeof(double)) {
    throw std::invalid_argument("a table is of another shape");
  }
  std::copy_n(values.data(), values.size(), reinterpret_cast<double*>(rows.data()));
}

/// A copy of a table, made part by part so that no thread waits for the whole copy. Rates from different moments are
/// equally good.
template <class Row>
std::vector<Row> copy_in_parts(FairLock& lock, const std::vector<Row>& table) {
  constexpr std::size_t kPart = 16'384;  // rows, 393 KB of bins, copied while the lock is held; a guess
  std::vector<Row> copied(table.size());
  for (std::size_t first = 0; first < table.size(); first += kPart) {
    Shared hold(lock);
    std::copy_n(table.begin() + static_cast<std::ptrdiff_t>(first), std::min(kPart, table.size() - first),
                copied.begin() + static_cast<std::ptrdiff_t>(first));
  }
  return copied;
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

void bind_calibration(nb::module_& module) {
  nb::class_<Calibration>(module, "Calibration", "Reliability of each kind of context, learned during drafting.")
      .def(
          "__init__",
          [](Calibration* self, const std::optional<Vector<const float>>& mixer_weights) {
            auto weights = mixer_weights
                               ? std::make_shared<const mixer::Weights>(mixer::read_weights(as_span(*mixer_weights)))
                               : nullptr;
            new (self) Calibration;
            self->mixer_weights = std::move(weights);
          },
          "mixer_weights"_a.none() = nb::none(),
          nb::sig("def __init__(self, mixer_weights: numpy.typing.NDArray[numpy.float32] | None = None) -> None"),
          "Make empty tables. ``mixer_weights``: of the network that mixes the sources, if any. Raises ValueError if "
          "they are\n"
          "not weights.")
      .def_prop_rw(
          "records_examples", [](const Calibration& self) { return self.examples != nullptr; },
          [](Calibration& self, bool records) {
            self.examples = records ? std::make_shared<mixer::Examples>() : nullptr;
          },
          "Whether learned positions are kept, for :func:`train_mixer`.")
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
      .def_prop_ro(
          "paths",
          [](const Calibration& self) {
            return as_table<double>(without_gil([&] { return Shared(self.lock), self.paths; }));
          },
          nb::rv_policy::move,
          "A copy of the same of drafted paths, by depth and range of estimates, shape ``[depths * ranges, 3]``.")
      .def(
          "restore",
          [](Calibration& self, const Table<const double>& weights, const Table<const double>& bins) {
            without_gil([&] {
              Exclusive hold(self.lock);
              fill(self.weights, weights);
              fill(self.bins, bins);
            });
          },
          "weights"_a, "bins"_a, "Load tables of these shapes. ValueError if the shapes differ.")
      .def(
          "copy",
          [](const Calibration& self) {
            return without_gil([&] { return Shared(self.lock), std::make_shared<Calibration>(self); });
          },
          "Return an independent copy.");
}

/// The kept rows of a memory; the table is copied part by part.
nb::object target_rows_of(const LearnedMemory& memory) {
  constexpr std::size_t kPart = 4'096;  // slots, 295 KB, copied while the lock is held; a guess
  std::vector<std::int64_t> slots, keys;
  std::vector<Token> rows;
  without_gil([&] {
    for (std::size_t first = 0; first < TargetTopK::kNumSlots; first += kPart) {
      Shared hold(memory.lock);
      const auto& all = memory.rows.slots();
      for (std::size_t index = first; index < std::min(first + kPart, all.size()); ++index) {
        const TargetTopK::Slot& slot = all[index];
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
      if (static_cast<std::uint64_t>(slots(index)) >= TargetTopK::kNumSlots) throw std::out_of_range("no such slot");
    }
    Exclusive hold(memory.lock);
    for (std::size_t index = 0; index < slots.size(); ++index) {
      TargetTopK::Slot slot{keys(index), {}};
      for (std::size_t each = 0; each < kTokens; ++each) {
        slot.rows[each / kRowWidth][each % kRowWidth] = rows(index * kTokens + each);
      }
      memory.rows.restore(static_cast<std::size_t>(slots(index)), slot);
    }
  });
}

void bind_memory(nb::module_& module) {
  nb::class_<LearnedMemory>(module, "LearnedMemory", "The accepted text of one tenant's sequences.")
      .def(nb::init<std::int64_t>(), "max_tokens"_a)
      .def(
          "__len__",
          [](const LearnedMemory& self) { return without_gil([&] { return Shared(self.lock), self.history.size(); }); })
      .def(
          "add",
          [](LearnedMemory& self, const Ids& ids) {
            without_gil([&] { self.add(tokens_of(as_span(ids), kMaxVocabulary)); });
          },
          "token_ids"_a, "Add a text; no match crosses its ends.")
      .def(
          "target_rows", &target_rows_of,
          nb::sig(
              "def target_rows(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], "
              "numpy.typing.NDArray[numpy.int32]]"),
          "Return the target's rows that its sequences share, for :meth:`restore_target_rows`: slots, their keys, and\n"
          "their rows, concatenated.")
      .def("restore_target_rows", &restore_target_rows, "slots"_a, "keys"_a, "rows"_a,
           "Restore slots from :meth:`target_rows`. IndexError if there is no such slot.")
      .def(
          "take_is_changed",
          [](LearnedMemory& self) {
            return without_gil([&] { return Exclusive(self.lock), std::exchange(self.rows.is_changed, false); });
          },
          "Return whether rows of the target were added since the last call.")
      .def(
          "set_graphs",
          [](LearnedMemory& self, const std::vector<std::shared_ptr<const GraphView>>& graphs) {
            auto held = shared(graphs);
            without_gil([&] {
              Exclusive hold(self.lock);
              self.graphs.swap(held);
            });
          },
          "graphs"_a,
          "Take the graphs of older text, the largest first. Sequences that begin from now on draft from them, too.")
      .def_prop_rw(
          "is_forgotten", [](const LearnedMemory& self) { return self.is_forgotten.load(); },
          [](LearnedMemory& self, bool is_forgotten) { self.is_forgotten = is_forgotten; },
          "Whether ending sequences no longer add their text.");
}

void bind_settings(nb::module_& module) {
  nb::class_<DraftSettings>(module, "DraftSettings", "Drafting settings; siblings by their number on the wire.")
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
          "``strategy``: its name in drafts. ``method``: one of :func:`methods`. ``fills_budget``: ignore the least\n"
          "probability. ``sources``: session, corpus, skip-gram, learned, target rows, neural.");
}

}  // namespace

void bind_drafter(nb::module_& module) {
  module.attr("ROW_WIDTH") = kRowWidth;
  module.attr("ROW_DEPTH") = kRowDepth;
  module.attr("MAX_GRAPHS") = kMaxNamedGraphs;
  module.def(
      "methods", [] { return std::vector<std::string>(std::begin(kMethods), std::end(kMethods)); },
      "Names of the methods of drafting.");
  bind_calibration(module);
  bind_memory(module);
  bind_settings(module);
  nb::class_<Drafter>(module, "Drafter", "Drafts from graphs, and from accepted tokens of sequences.")
      .def(
          "__init__",
          [](Drafter* self, const std::vector<std::shared_ptr<const GraphView>>& graphs, Token vocabulary_size,
             std::shared_ptr<Calibration> calibration, std::int64_t max_session_tokens, int num_threads,
             nb::object settings_of) {
            new (self) Drafter(Graphs(shared(graphs)), vocabulary_size, std::move(calibration), max_session_tokens,
                               num_threads, read_by(std::move(settings_of)));
          },
          "graphs"_a, "vocabulary_size"_a, "calibration"_a, "max_session_tokens"_a, "num_threads"_a, "settings_of"_a,
          "Draft from at most MAX_GRAPHS graphs, or from none; ids below ``vocabulary_size`` are tokens.\n\n"
          "``num_threads``: threads that draft trees for a batch; the number does not change drafts.\n"
          "``settings_of`` returns the settings for a StrategyOptions (bytes).")
      .def_prop_ro(
          "num_read", [](Drafter& self) { return without_gil([&] { return self.num_read(); }); },
          "Records of graphs read in search of most frequent successors, by finished calls.");
}

}  // namespace speculant
