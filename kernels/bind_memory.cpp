// Python binding of what is done to plain memory. Objects that are no buffers become TypeError.
#include <nanobind/nanobind.h>

#include <cstring>

#include "python_buffer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace ohdiff;

bool are_equal(nb::handle one, nb::handle other) {
  const ReadBuffer left(one), right(other);
  if (left.size() != right.size()) return false;
  const nb::gil_scoped_release released;
  return left.size() == 0 || std::memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def("are_equal", &are_equal, "one"_a, "other"_a, "Whether two buffers hold the same bytes.");
}
