// A Python buffer while native code reads it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ohdiff {

// A contiguous view of a Python buffer; the exporter cannot resize it while this lives. Needs the GIL to come and to go.
class ReadBuffer {
 public:
  explicit ReadBuffer(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nanobind::python_error();
  }
  ~ReadBuffer() { PyBuffer_Release(&view_); }
  ReadBuffer(const ReadBuffer&) = delete;
  ReadBuffer& operator=(const ReadBuffer&) = delete;
  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }
  std::span<const std::uint8_t> bytes() const { return {data(), size()}; }

 private:
  Py_buffer view_;
};

}  // namespace ohdiff
