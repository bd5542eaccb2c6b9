// The stages of a build, and the check of its result.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "arrays.hpp"
#include "builder/keys.hpp"
#include "builder/records.hpp"

namespace speculant {
namespace {

using namespace nb::literals;

using Records = Table<std::uint32_t>;
using ConstRecords = Table<const std::uint32_t>;

void require(bool holds, const char* message) {
  if (!holds) throw std::invalid_argument(message);
}

constexpr std::int64_t kLeafWords = 3;  // of a record of the last level, as in graph/layout.py

/// View a level's array, which includes the extra last record. Records with children have 4 words.
template <class Table>
MutableLevel level_of(const Table& array, std::int64_t min_width = 4) {
  const auto width = static_cast<std::int64_t>(array.shape(1));
  require(array.shape(0) >= 1 && width >= min_width && width <= 4, "records have 3 or 4 words, with children 4");
  return {{array.data(), static_cast<std::int64_t>(array.shape(0)) - 1, width}};
}

using Keys = Table<std::uint64_t>;
using ConstKeys = Table<const std::uint64_t>;
using Tokens = Vector<const std::uint32_t>;

void bind_keys(nb::module_& module) {
  module.def(
      "count_values",
      [](const Tokens& tokens, const Vector<const std::uint64_t>& prefix, const Vector<std::int64_t>& counts) {
        nb::gil_scoped_release release;
        count_values(as_span(tokens), as_span(prefix), as_span(counts));
      },
      "token_ids"_a, "prefix"_a, "counts"_a.noconvert(),
      "Count the values that follow a prefix: ``counts[value] += 1``, shape ``[vocabulary_size + 1]``.");
  module.def(
      "gather_keys",
      [](const Tokens& tokens, const Vector<const std::uint64_t>& prefix, std::uint64_t low, std::uint64_t high,
         std::int64_t length, int bits, const Keys& keys) {
        const KeyLayout layout(length, bits);
        require(std::cmp_equal(keys.shape(1), layout.num_words), "keys have the words of their layout");
        nb::gil_scoped_release release;
        return gather_keys(as_span(tokens), as_span(prefix), low, high, layout, as_span(keys));
      },
      "token_ids"_a, "prefix"_a, "low"_a, "high"_a, "length"_a, "bits"_a, "keys"_a.noconvert(),
      "Pack the n-grams of all positions whose next values are ``prefix`` and then one of ``low`` to ``high - 1``.\n"
      "Return their number; ``keys``, shape ``[at least this number, num_words]``, has them in the order of "
      "positions.");
  module.def(
      "sort_keys",
      [](const Keys& keys, const Keys& spare, std::int64_t depth, std::uint64_t low, std::uint64_t high,
         std::int64_t length, int bits) {
        const KeyLayout layout(length, bits);
        require(std::cmp_equal(keys.shape(1), layout.num_words), "keys have the words of their layout");
        nb::gil_scoped_release release;
        sort_keys(as_span(keys), as_span(spare), depth, low, high, layout);
      },
      "keys"_a.noconvert(), "spare"_a.noconvert(), "depth"_a, "low"_a, "high"_a, "length"_a, "bits"_a,
      "Sort keys in place, which share ``depth`` tokens and continue with values from ``low`` to ``high - 1``.\n"
      "``spare`` has their shape and is overwritten.");
}

void bind_emitter(nb::module_& module) {
  nb::class_<Emitter>(module, "Emitter", "Turns sorted keys, given in any portions, into records. For one thread.")
      .def(
          "__init__",
          [](Emitter* self, std::int64_t length, int bits, std::size_t capacity) {
            new (self) Emitter(KeyLayout(length, bits), capacity);
          },
          "length"_a, "bits"_a, "capacity"_a, "Buffer at most ``capacity`` records of every level.")
      .def(
          "emit",
          [](Emitter& self, const ConstKeys& keys, const std::optional<Ids>& weights, std::size_t row) {
            require(std::cmp_equal(keys.shape(1), self.layout().num_words), "keys have the words of their layout");
            require(!weights || weights->size() == keys.shape(0), "give one weight for each key");
            nb::gil_scoped_release release;
            return self.emit(as_span(keys), weights ? as_span(*weights) : Weights{}, row);
          },
          "keys"_a, "weights"_a.none(), "row"_a,
          "Write the records of keys from ``row`` on until a buffer is full, and return the next row. Keys ascend and\n"
          "are not below earlier ones, shape ``[num_keys, num_words]``; without weights each counts once.")
      .def_prop_ro(
          "records",
          [](nb::handle self) {
            auto& emitter = nb::cast<Emitter&>(self);
            std::vector<nb::ndarray<nb::numpy, std::uint32_t, nb::ndim<2>>> levels;
            for (std::int64_t depth = 0; depth < emitter.layout().length; ++depth) {
              const auto records = emitter.records(static_cast<std::size_t>(depth));
              levels.emplace_back(records.data(), std::initializer_list<std::size_t>{records.size(), 4}, self);
            }
            return levels;
          },
          "The records of every level from the last call, shape ``[n, 4]``; not copies.")
      .def_prop_ro("num_nodes", &Emitter::num_nodes, "Number of records of every level so far.")
      .def_prop_ro("totals", &Emitter::totals, "Sums of counts of every level so far.");
}

void bind_streams(nb::module_& module) {
  nb::class_<KeyReader>(module, "KeyReader",
                        "Walks through a graph and writes the keys of n-grams with own counts. For one thread.")
      .def(
          "__init__",
          [](KeyReader* self, const GraphView& graph, int bits, std::int64_t min_count) {
            new (self) KeyReader(graph.trie, bits, min_count);
          },
          "graph"_a, "bits"_a, "min_count"_a, nb::keep_alive<1, 2>(),
          "Omit n-grams with lower counts; their counts stay with the n-gram that they continue.")
      .def(
          "read",
          [](KeyReader& self, const Keys& keys, const Vector<std::int64_t>& weights) {
            require(std::cmp_equal(keys.shape(1), self.layout().num_words), "keys have the words of their layout");
            require(weights.size() == keys.shape(0), "give space for one weight for each key");
            nb::gil_scoped_release release;
            return self.read(as_span(keys), as_span(weights));
          },
          "keys"_a.noconvert(), "weights"_a.noconvert(),
          "Write the next keys, ascending, and return their number; 0 when the walk is over.");
  module.def(
      "merge_keys",
      [](const ConstKeys& first_keys, const Ids& first_weights, const ConstKeys& second_keys, const Ids& second_weights,
         std::size_t first, std::size_t second, const Keys& keys, const Vector<std::int64_t>& weights) {
        const std::size_t num_words = keys.shape(1), most = first_weights.size() + second_weights.size();
        require(first_keys.shape(1) == num_words && second_keys.shape(1) == num_words, "keys have the same words");
        require(first_keys.shape(0) == first_weights.size() && second_keys.shape(0) == second_weights.size(),
                "give one weight for each key");
        require(keys.shape(0) >= most && weights.size() >= most, "give space for both lists");
        WeightedKeys ours{as_span(first_keys), as_span(first_weights), first};
        WeightedKeys theirs{as_span(second_keys), as_span(second_weights), second};
        nb::gil_scoped_release release;
        const std::size_t found = merge_keys(ours, theirs, num_words, as_span(keys), as_span(weights));
        return std::tuple{found, ours.next, theirs.next};
      },
      "first_keys"_a, "first_weights"_a, "second_keys"_a, "second_weights"_a, "first"_a, "second"_a,
      "keys"_a.noconvert(), "weights"_a.noconvert(),
      "Merge two ascending lists of distinct keys from rows ``first`` and ``second`` on until one is exhausted.\n"
      "Equal keys add their weights. Return how many keys were written, and the next rows of both.");
}

void bind_finish(nb::module_& module) {
  module.def(
      "fill_unigram_index",
      [](const ConstRecords& unigrams, const Vector<std::uint32_t>& index) {
        nb::gil_scoped_release release;
        fill_unigram_index(level_of(unigrams), as_span(index));
      },
      "unigrams"_a, "index"_a.noconvert(),
      "Set ``index[token id]`` to the first record of level 1 with this token or a higher one.");
  module.def(
      "mark_argmax",
      [](const Records& level, const ConstRecords& next_level, std::int64_t start, std::int64_t stop) {
        nb::gil_scoped_release release;
        return mark_argmax(level_of(level), level_of(next_level, kLeafWords), start, stop);
      },
      "level"_a.noconvert(), "next_level"_a, "start"_a, "stop"_a,
      "Write the offset of the most frequent child, the first among equals, into records ``start`` to ``stop - 1``.\n"
      "Return how many of them have children.");
  module.def(
      "link_pairs",
      [](const ConstRecords& unigrams, const Records& pairs, const Vector<const std::uint32_t>& index,
         std::int64_t start, std::int64_t stop) {
        nb::gil_scoped_release release;
        link_pairs(level_of(unigrams), level_of(pairs, kLeafWords), as_span(index), start, stop);
      },
      "unigrams"_a, "pairs"_a.noconvert(), "index"_a, "start"_a, "stop"_a,
      "Link the n-grams of two tokens whose first tokens are records ``start`` to ``stop - 1`` of level 1.");
  module.def(
      "link_children",
      [](const ConstRecords& grandparents, const ConstRecords& parents, const Records& level, std::int64_t start,
         std::int64_t stop) {
        nb::gil_scoped_release release;
        link_children(level_of(grandparents), level_of(parents), level_of(level, kLeafWords), start, stop);
      },
      "grandparents"_a, "parents"_a, "level"_a.noconvert(), "start"_a, "stop"_a,
      "Link the children of parents ``start`` to ``stop - 1``, which are linked themselves.");
}

}  // namespace

void bind_build(nb::module_& module) {
  module.def(
      "find_damage",
      [](const GraphView& graph, const Vector<const std::uint32_t>& unigram_index) {
        nb::gil_scoped_release release;
        return find_damage(graph.trie, as_span(unigram_index));
      },
      "graph"_a, "unigram_index"_a,
      "Return the first defect that no build would have written, or None; in time linear in the graph's size.");
  bind_keys(module);
  bind_emitter(module);
  bind_streams(module);
  bind_finish(module);
}

}  // namespace speculant
