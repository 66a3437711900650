// What the bindings of tables that are files share: paths and tags in, system failures out, the GIL released while
// working.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "id_table.hpp"

namespace ohdiff {

// OSError with errno and filename for what the system refused, ValueError for a file that is damaged.
[[noreturn]] inline void raise(const TableError& error) {
  const auto path = nanobind::steal(PyUnicode_DecodeFSDefault(error.path.c_str()));
  if (!path.is_valid()) throw nanobind::python_error();
  if (error.code == 0) {
    PyErr_Format(PyExc_ValueError, "%S: %s", path.ptr(), error.what());
  } else {
    errno = error.code;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
  }
  throw nanobind::python_error();
}

template <class Work>
auto without_gil(Work work) {
  try {
    const nanobind::gil_scoped_release released;
    return work();
  } catch (const TableError& error) {
    raise(error);
  }
}

// A str, bytes or path-like, in the file system's own encoding.
inline std::string file_name(nanobind::handle path) {
  PyObject* encoded = nullptr;
  if (!PyUnicode_FSConverter(path.ptr(), &encoded)) throw nanobind::python_error();
  const auto owner = nanobind::steal(encoded);
  return {PyBytes_AsString(encoded), static_cast<std::size_t>(PyBytes_Size(encoded))};
}

inline TableTag table_tag(const nanobind::bytes& tag) {
  TableTag result;
  if (tag.size() != result.size()) throw std::invalid_argument("tag is 32 bytes");
  std::copy_n(static_cast<const std::uint8_t*>(tag.data()), result.size(), result.begin());
  return result;
}

}  // namespace ohdiff
