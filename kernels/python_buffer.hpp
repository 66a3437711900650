// Memory of Python while native code reads or fills it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace ohdiff {

// A contiguous view of a Python buffer; the exporter cannot resize it while this lives. Needs the GIL to come and to go.
class ReadBuffer {
 public:
  explicit ReadBuffer(nanobind::handle object) : ReadBuffer(object, PyBUF_SIMPLE) {}
  ~ReadBuffer() { PyBuffer_Release(&view_); }
  ReadBuffer(const ReadBuffer&) = delete;
  ReadBuffer& operator=(const ReadBuffer&) = delete;
  const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
  std::size_t size() const { return static_cast<std::size_t>(view_.len); }
  std::span<const std::uint8_t> bytes() const { return {data(), size()}; }
  bool overlaps(const ReadBuffer& other) const {
    return data() < other.data() + other.size() && other.data() < data() + size();
  }

 protected:
  ReadBuffer(nanobind::handle object, int flags) {
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) throw nanobind::python_error();
  }
  Py_buffer view_;
};

// The same, to be filled.
class WriteBuffer : public ReadBuffer {
 public:
  explicit WriteBuffer(nanobind::handle object) : ReadBuffer(object, PyBUF_WRITABLE) {}
  std::uint8_t* target() const { return static_cast<std::uint8_t*>(view_.buf); }
};

// Bytes that are filled in place before anyone else sees them.
class NewBytes {
 public:
  explicit NewBytes(std::size_t size)
      : object_(nanobind::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)))) {
    if (!object_.is_valid()) throw nanobind::python_error();
  }
  std::uint8_t* data() const { return reinterpret_cast<std::uint8_t*>(PyBytes_AsString(object_.ptr())); }
  nanobind::object object() const { return object_; }

 private:
  nanobind::object object_;
};

}  // namespace ohdiff
