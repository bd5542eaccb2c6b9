// Arrays at the boundary to Python: views of arguments, and conversion of results.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graphs.hpp"

namespace speculant {

namespace nb = nanobind;

template <class Number, class... Traits>
using Array = nb::ndarray<Number, nb::c_contig, nb::device::cpu, Traits...>;
template <class Number>
using Vector = Array<Number, nb::ndim<1>>;
template <class Number>
using Table = Array<Number, nb::ndim<2>>;
using Ids = Vector<const std::int64_t>;

template <class Number, class... Traits>
std::span<Number> as_span(const Array<Number, Traits...>& array) {
  return {array.data(), array.size()};
}

/// Hand a vector over to numpy without a copy.
template <class Number>
nb::ndarray<nb::numpy, Number, nb::ndim<1>> as_array(std::vector<Number> values) {
  auto* kept = new std::vector<Number>(std::move(values));
  nb::capsule owner(kept, [](void* each) noexcept { delete static_cast<std::vector<Number>*>(each); });
  return {kept->data(), {kept->size()}, owner};
}

/// Copy a vector of structs, whose members have one number type, to a table.
template <class Number, class Struct>
nb::ndarray<nb::numpy, Number, nb::ndim<2>> as_table(std::vector<Struct> rows) {
  auto* kept = new std::vector<Struct>(std::move(rows));
  nb::capsule owner(kept, [](void* each) noexcept { delete static_cast<std::vector<Struct>*>(each); });
  return {reinterpret_cast<Number*>(kept->data()), {kept->size(), sizeof(Struct) / sizeof(Number)}, owner};
}

inline nb::bytes to_bytes(std::string_view bytes) { return nb::bytes(bytes.data(), bytes.size()); }

/// Run a call without the GIL, which any wait for a lock of the core requires.
template <class Call>
auto without_gil(Call&& call) {
  nb::gil_scoped_release release;
  return call();
}

/// A graph, and the memory that its trie and its neural model view.
struct GraphView : Graph {
  GraphView(Vector<const std::uint32_t> words, const Table<const std::int64_t>& table,
            std::optional<Vector<const std::uint32_t>> model_words)
      : words(std::move(words)), model_words(std::move(model_words)) {
    trie = Trie(as_span(this->words), as_span(table));
    if (this->model_words) model = neural::Model(as_span(*this->model_words));
  }
  Vector<const std::uint32_t> words;
  std::optional<Vector<const std::uint32_t>> model_words;
};

/// Python's graphs, kept alive as long as drafters use them.
inline std::vector<Graphs::Shared> shared(const std::vector<std::shared_ptr<const GraphView>>& graphs) {
  if (std::find(graphs.begin(), graphs.end(), std::shared_ptr<const GraphView>()) != graphs.end())
    throw RequestError("a graph is missing: None");
  return {graphs.begin(), graphs.end()};
}

void bind_graph(nb::module_& module);
void bind_drafter(nb::module_& module);
void bind_build(nb::module_& module);
void bind_neural(nb::module_& module);
void bind_mixer(nb::module_& module);
void bind_verify(nb::module_& module);
void bind_steps(nb::module_& module);
void bind_rows(nb::module_& module);
void bind_local_steps(nb::module_& module);
void bind_request_writer(nb::module_& module);
void bind_messages(nb::module_& module);

}  // namespace speculant
