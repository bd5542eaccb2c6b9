// The stages of a build, and the check of what one wrote.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "build/check.hpp"
#include "graph_view.hpp"

namespace speculant {

using namespace nb::literals;

void bind_build(nb::module_& module) {
  module.def(
      "find_damage",
      [](const GraphView& graph, const Vector<const std::uint32_t>& unigram_index) {
        nb::gil_scoped_release release;
        return find_damage(graph.trie, as_span(unigram_index));
      },
      "graph"_a, "unigram_index"_a,
      "Return what no build would have written, or None; in time linear in the graph's size.");
}

}  // namespace speculant
