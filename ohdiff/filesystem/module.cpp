// The Python module `ohdiff._posix`: gathers the bindings, and turns system errors into OSError.
#include "python.hpp"

namespace ohdiff::posix {

void bind_listing(nb::module_& module);
void bind_status(nb::module_& module);
void bind_xattrs(nb::module_& module);
void bind_reading(nb::module_& module);
void bind_creating(nb::module_& module);
void bind_dressing(nb::module_& module);
void bind_ranges(nb::module_& module);
void bind_flags(nb::module_& module);
void bind_breaks(nb::module_& module);

namespace {

void raise_os_error(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  }
}

}  // namespace
}  // namespace ohdiff::posix

NB_MODULE(_posix, module) {
  using namespace ohdiff::posix;
  module.doc() = "Batch file access: many system calls a call, relative to open directories, lock released.";
  nb::register_exception_translator(raise_os_error);
  bind_listing(module);
  bind_status(module);
  bind_xattrs(module);
  bind_reading(module);
  bind_creating(module);
  bind_dressing(module);
  bind_ranges(module);
  bind_flags(module);
  bind_breaks(module);
}
