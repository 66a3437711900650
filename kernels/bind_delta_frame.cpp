// Python binding of delta frames (delta_frame.hpp): buffers in, a zstd frame out, the GIL released while working.
#include <nanobind/nanobind.h>

#include <vector>

#include "delta_frame.hpp"
#include "python_buffer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace ohdiff;

nb::object encode_delta_frame(nb::handle plain, nb::handle base, std::size_t size_max) {
  const ReadBuffer plain_view(plain), base_view(base);
  thread_local std::vector<std::uint8_t> frame;
  bool is_small;
  {
    const nb::gil_scoped_release released;
    is_small = encode_delta(plain_view.bytes(), base_view.bytes(), size_max, frame);
  }
  if (!is_small) return nb::none();
  return nb::bytes(frame.data(), frame.size());
}

constexpr char kDoc[] = R"(A zstd frame of bytes that are nearly those of their base, which a decoder needs as prefix.

Several times as fast as a compressor that looks for everything: bytes that the base does not have stay as they are.
The same inputs give the same frame.

Parameters
----------
plain, base : bytes-like
    At most 128 MiB each; contiguous host memory, read in place while the interpreter's lock is released, and not kept.
size_max : int
    The largest frame of use.

Returns
-------
bytes or None
    None if the frame would be larger.

Raises
------
ValueError
    An input is too large.
)";

}  // namespace

void bind_delta_frame(nb::module_& module) {
  module.def("encode_delta", &encode_delta_frame, "plain"_a, "base"_a, "size_max"_a, kDoc);
}
