// A Python text, read in place if possible.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "arrays.hpp"

namespace speculant {

/// A Python text: an array of integers, or any sequence of them. Its spans are valid during its lifetime.
class Text {
 public:
  explicit Text(nb::handle text) {
    if (PyObject_CheckBuffer(text.ptr())) {
      if (PyObject_GetBuffer(text.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND) == 0) {
        const bool is_whole = view_.format != nullptr && std::strchr("iIlLqQ", view_.format[0]) != nullptr;
        has_view_ = is_whole && view_.ndim == 1 && (view_.itemsize == 4 || view_.itemsize == 8);
        if (has_view_) return;
        PyBuffer_Release(&view_);
      }
      PyErr_Clear();  // read number by number, as if not contiguous
    }
    numbers_ = PyList_Check(text.ptr()) ? nb::borrow(text) : nb::steal(PySequence_List(text.ptr()));
    if (!numbers_.is_valid()) nb::raise_python_error();
  }
  ~Text() {
    if (has_view_) PyBuffer_Release(&view_);
  }
  Text(const Text&) = delete;

  std::size_t size() const {
    return has_view_ ? static_cast<std::size_t>(view_.shape[0]) : static_cast<std::size_t>(nb::len(numbers_));
  }
  std::int64_t operator[](std::size_t index) const {
    if (has_view_ && view_.itemsize == 4) return static_cast<const std::int32_t*>(view_.buf)[index];
    if (has_view_) return static_cast<const std::int64_t*>(view_.buf)[index];
    const auto number = PyLong_AsLongLong(PyList_GetItem(numbers_.ptr(), static_cast<Py_ssize_t>(index)));
    if (number == -1 && PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_OverflowError)) nb::raise_python_error();
      PyErr_Clear();  // too large for an id
    }
    return number;
  }
  /// The text in place, or copied into `numbers`.
  std::span<const std::int32_t> ids(std::vector<std::int32_t>& numbers) const {
    if (has_view_ && view_.itemsize == 4) return {static_cast<const std::int32_t*>(view_.buf), size()};
    for (std::size_t index = 0; index < size(); ++index) numbers.push_back(static_cast<std::int32_t>((*this)[index]));
    return numbers;
  }

 private:
  Py_buffer view_ = {};
  bool has_view_ = false;
  nb::object numbers_;
};

}  // namespace speculant
