// The Python module `ohdiff._kernels`: gathers the bindings of every kernel.
#include <nanobind/nanobind.h>

void bind_chunker(nanobind::module_& module);
void bind_id_table(nanobind::module_& module);
void bind_resemblance(nanobind::module_& module);
void bind_numbers(nanobind::module_& module);
void bind_tensor_change(nanobind::module_& module);
void bind_memory(nanobind::module_& module);
void bind_delta_frame(nanobind::module_& module);

NB_MODULE(_kernels, module) {
  module.doc() = "Compute kernels: boundary scan, features, the sorted id table, and the resemblance table.";
  bind_chunker(module);
  bind_id_table(module);
  bind_resemblance(module);
  bind_numbers(module);
  bind_tensor_change(module);
  bind_memory(module);
  bind_delta_frame(module);
}
