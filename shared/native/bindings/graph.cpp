// Trie: the look-ups of a graph.
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "arrays.hpp"

namespace speculant {
namespace {

using namespace nb::literals;
using Pair = std::pair<std::int64_t, std::int64_t>;

std::vector<Token> tokens_of(const GraphView& graph, const Ids& ids) {
  return speculant::tokens_of(as_span(ids), graph.trie.vocabulary_size());
}

/// A context named by Python, checked against this graph.
Context checked(const GraphView& graph, std::int64_t order, std::int64_t node) {
  if (!graph.trie.has_context({order, node})) throw RequestError("the graph has no such context");
  return {order, node};
}

const Level& checked_level(const GraphView& graph, std::int64_t length, std::int64_t low, std::int64_t high) {
  if (length < 1 || length > graph.trie.max_order() + 1 || low < 0 || low > high ||
      high > graph.trie.level(length).size) {
    throw RequestError("the graph has no such n-grams");
  }
  return graph.trie.level(length);
}

/// Count the known parts of a text. Per order: positions with this many tokens before them; positions with a known
/// context; positions where its most frequent successor follows; and the last two counts for positions where it is the
/// longest known context.
std::vector<std::array<std::int64_t, 5>> count_known(const Trie& trie, std::span<const std::uint32_t> ids) {
  constexpr std::uint32_t kDocumentSeparator = 0xFFFFFFFF;  // the builder writes it between documents
  std::vector<std::array<std::int64_t, 5>> counts(static_cast<std::size_t>(trie.max_order()) + 1);
  const auto of = [&](std::int64_t order) -> auto& { return counts[static_cast<std::size_t>(order)]; };
  Context longest;
  std::int64_t before = 0;
  for (std::uint32_t id : ids) {
    if (id == kDocumentSeparator) {
      longest = {}, before = 0;
      continue;
    }
    const Token token = id < static_cast<std::uint32_t>(kMaxVocabulary) ? static_cast<Token>(id) : kNoToken;
    for (std::int64_t order = 1; order <= std::min(before, trie.max_order()); ++order) ++of(order)[0];
    for (Context context = longest; context.order > 0; context = trie.shorter(context)) {
      const Range children = trie.children(context);
      if (children.empty()) continue;
      const bool is_right = trie.level(context.order + 1).token(trie.argmax_child(context, children)) == token;
      auto& row = of(context.order);
      ++row[1], row[2] += is_right;
      if (context.order == longest.order) ++row[3], row[4] += is_right;
    }
    longest = trie.extend(longest, token);
    ++before;
  }
  return counts;
}

}  // namespace

void bind_graph(nb::module_& module) {
  nb::class_<GraphView>(module, "Trie", "The look-ups of a graph, whose arrays are viewed and never copied.")
      .def(nb::init<Vector<const std::uint32_t>, Table<const std::int64_t>,
                    std::optional<Vector<const std::uint32_t>>>(),
           "words"_a, "table"_a, "model_words"_a = nb::none(),
           "View a block of words, and those of a neural model; the table is that of ``graph/layout.py``. ValueError\n"
           "if it refers to words outside, or the model is invalid.")
      .def(
          "match",
          [](const GraphView& self, const Ids& ids) {
            const Context context = self.trie.match(tokens_of(self, ids));
            return Pair{context.order, context.node};
          },
          "token_ids"_a, "Return (order, record) of the longest suffix with successors; (0, 0) if there is none.")
      .def(
          "find_ngram",
          [](const GraphView& self, const Ids& ids) -> std::int64_t {
            if (ids.size() == 0 || std::ssize(as_span(ids)) > self.trie.max_order() + 1) return -1;
            return self.trie.find_ngram(tokens_of(self, ids));
          },
          "token_ids"_a, "Return the record of an n-gram of 1 to N+1 tokens on its level, or -1.")
      .def(
          "children",
          [](const GraphView& self, std::int64_t order, std::int64_t node) {
            const Range range = self.trie.children(checked(self, order, node));
            return Pair{range.low, range.high};
          },
          "order"_a, "node"_a, "Return a context's successors as a range of records of level ``order + 1``.")
      .def(
          "read",
          [](const GraphView& self, std::int64_t length, std::int64_t low, std::int64_t high) {
            const Level& level = checked_level(self, length, low, high);
            std::vector<std::uint32_t> tokens, counts;
            for (std::int64_t node = low; node < high; ++node) {
              tokens.push_back(static_cast<std::uint32_t>(level.token(node)));
              counts.push_back(static_cast<std::uint32_t>(level.count(node)));
            }
            return std::pair(as_array(std::move(tokens)), as_array(std::move(counts)));
          },
          "length"_a, "low"_a, "high"_a, "Return the last tokens and the counts of a range of n-grams of one length.")
      .def(
          "spell",
          [](const GraphView& self, std::int64_t length, std::int64_t low, std::int64_t high) {
            checked_level(self, length, low, high);
            std::vector<std::uint32_t> ngrams(static_cast<std::size_t>((high - low) * length));
            self.trie.spell(length, low, ngrams);
            return as_array(std::move(ngrams));
          },
          "length"_a, "low"_a, "high"_a,
          "Return a range of n-grams of one length, concatenated: ``length`` tokens each.")
      .def(
          "count_known",
          [](const GraphView& self, const Vector<const std::uint32_t>& ids) {
            nb::gil_scoped_release release;
            return count_known(self.trie, as_span(ids));
          },
          "token_ids"_a, "Return how much of a text is known, five numbers for each order.");
}

}  // namespace speculant
