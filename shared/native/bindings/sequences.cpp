// Target rows, memories, calibrations and sequences: what drafts are made from beside the graph.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "sequence.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

void bind_rows(nb::module_& module) {
  using Slot = TargetRows::Slot;
  nb::class_<TargetRows>(module, "TargetRows", "The target's own top tokens, by what they follow.")
      .def(nb::init<>())
      .def(
          "slots",
          [](TargetRows& self) {
            std::vector<std::int64_t> slots, keys;
            std::vector<Token> rows;
            exclusively([&] {
              self.is_changed = false;
              for (std::size_t index = 0; index < self.slots().size(); ++index) {
                const Slot& slot = self.slots()[index];
                if (slot.key < 0) continue;
                slots.push_back(static_cast<std::int64_t>(index));
                keys.push_back(slot.key);
                for (const auto& row : slot.rows) rows.insert(rows.end(), row.begin(), row.end());
              }
            });
            return std::tuple(as_array(std::move(slots)), as_array(std::move(keys)), as_array(std::move(rows)));
          },
          "Return what is kept, for :meth:`restore`: slots, their keys, and their rows one after another.")
      .def(
          "restore",
          [](TargetRows& self, const Ids& slots, const Ids& keys, const Vector<const Token>& rows) {
            constexpr std::size_t kTokens = std::size_t{kRowDepth} * kRowWidth;
            if (keys.size() != slots.size() || rows.size() != slots.size() * kTokens) {
              throw RequestError("slots, keys and rows are not of one table");
            }
            exclusively([&] {
              for (std::size_t index = 0; index < slots.size(); ++index) {
                Slot slot{keys(index), {}};
                for (std::size_t each = 0; each < kTokens; ++each) {
                  slot.rows[each / kRowWidth][each % kRowWidth] = rows(index * kTokens + each);
                }
                self.restore(static_cast<std::size_t>(slots(index)), slot);
              }
            });
          },
          "slots"_a, "keys"_a, "rows"_a, "Fill slots as :meth:`slots` returned them. IndexError where there is none.")
      .def_prop_ro(
          "is_changed", [](const TargetRows& self) { return self.is_changed; },
          "Whether rows came since :meth:`slots`.");
  module.attr("ROW_WIDTH") = kRowWidth;
  module.attr("ROW_DEPTH") = kRowDepth;
}

void bind_calibration(nb::module_& module) {
  nb::class_<Calibration>(module, "Calibration", "How reliable each kind of context is; learned while drafting.")
      .def(nb::init<>(), "Make tables that know nothing yet.")
      .def_prop_ro(
          "weights", [](nb::handle self) { return as_table<double>(nb::cast<Calibration&>(self).weights, self); },
          "(visits, passed on) of every kind of context, shape ``[kinds, 2]``; not a copy.")
      .def_prop_ro(
          "bins", [](nb::handle self) { return as_table<double>(nb::cast<Calibration&>(self).bins, self); },
          "(visits, sum of probabilities, hits) of every bin, shape ``[ranges * supports, 3]``; not a copy.")
      .def(
          "copy",
          [](const Calibration& self) { return exclusively([&] { return std::make_shared<Calibration>(self); }); },
          "Return tables that change apart from these.");
}

}  // namespace

void bind_sequences(nb::module_& module) {
  bind_rows(module);
  bind_calibration(module);
  nb::class_<LearnedMemory>(module, "LearnedMemory", "What one tenant's sequences accepted.")
      .def(nb::init<std::int64_t>(), "max_tokens"_a)
      .def("__len__", [](const LearnedMemory& self) { return exclusively([&] { return self.history.size(); }); })
      .def(
          "add",
          [](LearnedMemory& self, const Ids& ids) {
            exclusively([&] { self.add(tokens_of(as_span(ids), kMaxVocabulary)); });
          },
          "token_ids"_a, "Add a text; no match runs across its ends.")
      .def_prop_rw(
          "rows", [](const LearnedMemory& self) { return self.rows; },
          [](LearnedMemory& self, std::shared_ptr<TargetRows> rows) { self.rows = std::move(rows); },
          "The target's rows that its sequences share.")
      .def_prop_rw(
          "is_forgotten", [](const LearnedMemory& self) { return self.is_forgotten.load(); },
          [](LearnedMemory& self, bool is_forgotten) { self.is_forgotten = is_forgotten; },
          "Whether nothing is added any more by sequences that end.");
  nb::class_<Sequence>(module, "Sequence", "One sequence that is drafted for; :meth:`Drafter.open` begins one.")
      .def(
          "finish", [](Sequence& self) { return as_array(exclusively([&] { return self.finish(); })); },
          "End: add what followed the prompt, after the prompt's last tokens, to the memory if later sequences may\n"
          "learn from it, and return it.")
      .def_prop_ro(
          "num_bytes", [](const Sequence& self) { return exclusively([&] { return self.num_bytes(); }); },
          "Memory that is its own.");
}

}  // namespace speculant
