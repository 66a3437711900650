// Between Python objects and the plain structures that the batch calls work on. All of it needs the interpreter's
// lock. Wrong lengths, ranges and names are ValueError, wrong types TypeError, before any system call is made.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "posix.hpp"

namespace nb = nanobind;

namespace ohdiff::posix {

// A name is one path component: anything else could lead out of the directory that the caller holds open.
inline const char* checked_name(nb::handle name) {
  char* text;
  Py_ssize_t length;
  if (PyBytes_AsStringAndSize(name.ptr(), &text, &length) != 0) throw nb::python_error();
  if (length == 0 || std::memchr(text, '/', length) || std::memchr(text, 0, length) || std::strcmp(text, "..") == 0)
    throw std::invalid_argument("not the name of a directory entry");
  return text;
}

// Holds the names alive and unchanged while the lock is released, whatever others do to the list meanwhile.
class NameList {
 public:
  explicit NameList(const nb::list& names) : held_(nb::steal(PyList_AsTuple(names.ptr()))) {
    const auto count = static_cast<std::size_t>(PyTuple_Size(held_.ptr()));
    texts_.reserve(count);
    for (std::size_t row = 0; row < count; ++row) texts_.push_back(checked_name(object(row)));
  }
  std::size_t size() const { return texts_.size(); }
  const char* operator[](std::size_t row) const { return texts_[row]; }
  nb::handle object(std::size_t row) const { return PyTuple_GetItem(held_.ptr(), static_cast<Py_ssize_t>(row)); }

 private:
  nb::object held_;
  std::vector<const char*> texts_;
};

template <class Integer>
Integer to_integer(nb::handle item, const char* what, Integer lowest, Integer highest) {
  if (!item.is_valid()) throw nb::python_error();
  if (!PyLong_Check(item.ptr())) throw nb::type_error(what);
  using Wide = std::conditional_t<std::is_signed_v<Integer>, long long, unsigned long long>;
  Wide value;
  if constexpr (std::is_signed_v<Integer>) {
    value = PyLong_AsLongLong(item.ptr());
  } else {
    value = PyLong_AsUnsignedLongLong(item.ptr());
  }
  const bool has_overflowed = value == static_cast<Wide>(-1) && PyErr_Occurred();
  if (has_overflowed) PyErr_Clear();
  if (has_overflowed || value < lowest || value > highest)
    throw std::invalid_argument(std::string(what) + ": a number is out of range");
  return static_cast<Integer>(value);
}

template <class Integer>
std::vector<Integer> to_integers(const nb::list& list, std::size_t count, const char* what,
                                 Integer lowest = std::numeric_limits<Integer>::min(),
                                 Integer highest = std::numeric_limits<Integer>::max()) {
  if (list.size() != count)
    throw std::invalid_argument(std::string(what) + ": " + std::to_string(list.size()) + " items for " +
                                std::to_string(count) + " names");
  std::vector<Integer> numbers;
  numbers.reserve(count);
  for (std::size_t row = 0; row < count; ++row)
    numbers.push_back(
        to_integer<Integer>(PyList_GetItem(list.ptr(), static_cast<Py_ssize_t>(row)), what, lowest, highest));
  return numbers;
}

inline std::vector<int> to_descriptors(const nb::list& list, std::size_t count) {
  return to_integers<int>(list, count, "dir_fds", 0);
}

class BufferView {
 public:
  BufferView(nb::handle object, bool is_writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, is_writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      throw nb::python_error();
  }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  ~BufferView() { PyBuffer_Release(&view_); }
  char* data() const { return static_cast<char*>(view_.buf); }
  std::int64_t size() const { return view_.len; }

 private:
  Py_buffer view_;
};

inline nb::object to_python(std::int64_t value) { return nb::steal(PyLong_FromLongLong(value)); }
inline nb::object to_python(std::uint64_t value) { return nb::steal(PyLong_FromUnsignedLongLong(value)); }
inline nb::object to_python(std::uint32_t value) { return nb::steal(PyLong_FromUnsignedLong(value)); }
inline nb::object to_python(int value) { return nb::steal(PyLong_FromLong(value)); }
inline nb::object to_python(const std::string& bytes) {
  return nb::steal(PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
}

template <class Make>
nb::list make_list(std::size_t count, Make make) {
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list.is_valid()) throw nb::python_error();
  for (std::size_t row = 0; row < count; ++row) {
    nb::object item = make(row);
    if (!item.is_valid()) throw nb::python_error();
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(row), item.release().ptr());
  }
  return nb::borrow<nb::list>(list);
}

// Neighbouring rows often hold the same mode, owner or device: they share one Python object.
template <class Get>
nb::list make_column(std::size_t count, Get get) {
  nb::object last;
  decltype(get(0)) last_value{};
  return make_list(count, [&](std::size_t row) {
    const auto value = get(row);
    if (!last.is_valid() || value != last_value) {
      last = to_python(value);
      last_value = value;
    }
    return last;
  });
}

inline nb::list to_python(const Xattrs& xattrs) {
  return make_list(xattrs.size(), [&](std::size_t row) {
    return nb::object(nb::make_tuple(to_python(xattrs[row].name), to_python(xattrs[row].value)));
  });
}

inline nb::list to_python(const std::vector<int>& statuses) {
  return make_column(statuses.size(), [&](std::size_t row) { return statuses[row]; });
}

}  // namespace ohdiff::posix
