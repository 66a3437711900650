// Python binding of the comparison of tensors (tensor_change.hpp): buffers in, counts and sums out, the GIL released
// while comparing. Bad arguments become ValueError, objects that are no buffers TypeError.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>

#include <stdexcept>
#include <string>

#include "python_buffer.hpp"
#include "tensor_change.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace ohdiff;

nb::tuple count_changes(nb::handle before, nb::handle after, std::string_view kind_name) {
  const ElementKind* kind = find_element_kind(kind_name);
  if (kind == nullptr) throw std::invalid_argument("no such kind of element: " + std::string(kind_name));
  const ReadBuffer old_view(before), new_view(after);
  if (old_view.size() != new_view.size()) throw std::invalid_argument("both sides must be of one size");
  if (old_view.size() % kind->width != 0) throw std::invalid_argument("data must be whole elements");
  TensorChange found;
  {
    const nb::gil_scoped_release released;
    found = kind->compare(old_view.data(), new_view.data(), old_view.size() / kind->width);
  }
  return nb::make_tuple(found.changed, found.not_finite, found.difference_square_sum, found.old_square_sum);
}

}  // namespace

void bind_tensor_change(nb::module_& module) {
  module.def("count_changes", &count_changes, "before"_a, "after"_a, "kind"_a,
             "How many elements differ and are not finite, and the sums of squares of differences and of before.");
}
