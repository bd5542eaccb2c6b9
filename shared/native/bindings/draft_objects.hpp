// Drafts as Python objects: the values of types.py.
#pragma once

#include <type_traits>
#include <vector>

#include "arrays.hpp"
#include "drafter.hpp"

namespace speculant {

/// Numbers as a tuple; integers are not negative.
template <class Numbers>
nb::object as_numbers(const Numbers& numbers) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(numbers.size())));
  Py_ssize_t index = 0;
  for (const auto number : numbers) {
    if constexpr (std::is_floating_point_v<std::remove_cvref_t<decltype(number)>>) {
      PyTuple_SetItem(tuple.ptr(), index++, PyFloat_FromDouble(static_cast<double>(number)));
    } else {
      PyTuple_SetItem(tuple.ptr(), index++, PyLong_FromUnsignedLongLong(number));
    }
  }
  return tuple;
}

/// Makes values of types.py; no other code does. A draft is not a bound struct, because verifiers read its attributes
/// often: a read takes 20 ns from slots and 30 to 50 ns from such a struct. Fields are set without the constructor of
/// the frozen class, which takes 0.9 us, three times as long.
class DraftMaker {
 public:
  /// The instance of this process; outlives the interpreter.
  static const DraftMaker& instance() {
    static const DraftMaker& maker = *new DraftMaker();
    return maker;
  }

  nb::object make(const std::vector<nb::object>& values) const {
    nb::object draft = make_(draft_);
    for (std::size_t index = 0; index < values.size(); ++index) set(draft, names_[index], values[index]);
    set(draft, sources_, none_);  // all nodes come from n-grams
    return draft;
  }
  nb::object make_proposals(const nb::object& bounds, const nb::object& ids, const nb::object& probabilities) const {
    return proposals_(bounds, ids, probabilities);
  }

 private:
  static void set(const nb::object& draft, const nb::object& name, const nb::object& value) {
    if (PyObject_GenericSetAttr(draft.ptr(), name.ptr(), value.ptr()) != 0) nb::raise_python_error();
  }

  DraftMaker() {
    const nb::module_ types = nb::module_::import_("speculant_graph.types");
    draft_ = types.attr("Draft"), proposals_ = types.attr("Proposals");
    make_ = nb::borrow(reinterpret_cast<PyObject*>(&PyBaseObject_Type)).attr("__new__");
    for (const char* name :
         {"token_ids", "parents", "path_probabilities", "proposals", "strategy", "terminated_early", "draft_id"}) {
      names_.push_back(nb::steal(PyUnicode_InternFromString(name)));
    }
    sources_ = nb::steal(PyUnicode_InternFromString("sources")), none_ = nb::make_tuple();
  }

  nb::object draft_, proposals_, make_, sources_, none_;
  std::vector<nb::object> names_;
};

/// A draft as a Python object. `distributions`: the distributions of its proposals; null if it has none.
inline nb::object as_draft(const Draft& draft, const Distributions* distributions, const std::string& strategy,
                           std::uint64_t draft_id) {
  const DraftMaker& maker = DraftMaker::instance();
  const nb::object name = nb::steal(PyUnicode_InternFromString(strategy.c_str()));
  nb::object made = nb::make_tuple();
  if (!draft.proposals.empty()) {
    std::vector<std::uint64_t> bounds{0};
    std::vector<std::uint32_t> ids;
    std::vector<float> probabilities;
    for (const auto& [first, last] : draft.proposals) {
      const auto from = static_cast<std::ptrdiff_t>(first), to = static_cast<std::ptrdiff_t>(last);
      ids.insert(ids.end(), distributions->tokens.begin() + from, distributions->tokens.begin() + to);
      probabilities.insert(probabilities.end(), distributions->probabilities.begin() + from,
                           distributions->probabilities.begin() + to);
      bounds.push_back(ids.size());
    }
    made = maker.make_proposals(as_numbers(bounds), nb::cast(as_array(std::move(ids))),
                                nb::cast(as_array(std::move(probabilities))));
  }
  return maker.make({as_numbers(draft.tokens), as_numbers(draft.parents), as_numbers(draft.probabilities), made, name,
                     nb::bool_(draft.ended_early), nb::cast(draft_id)});
}

}  // namespace speculant
