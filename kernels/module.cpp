// The Python module `ohdiff._kernels`: gathers the bindings of every kernel.
#include <nanobind/nanobind.h>

void bind_chunker(nanobind::module_& module);
void bind_id_table(nanobind::module_& module);

NB_MODULE(_kernels, module) {
  module.doc() = "Compute kernels: boundary scan, features, and the sorted id table.";
  bind_chunker(module);
  bind_id_table(module);
}
