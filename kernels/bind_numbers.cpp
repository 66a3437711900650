// Python bindings of the number kernels (numbers.hpp): buffers in, planes or elements out, the GIL released while
// working. Bad arguments become ValueError, objects that are no buffers TypeError. A buffer must not be changed during
// a call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.hpp"
#include "python_buffer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace ohdiff;

// Places of grouped elements are counted in 32 bits.
constexpr std::size_t size_max = std::size_t{1} << 30;

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

const NumbersKernel& demanded_kernel(std::string_view name) {
  const NumbersKernel* kernel = name.empty() ? runnable_numbers_kernels().front() : find_numbers_kernel(name);
  if (kernel == nullptr) throw std::invalid_argument("kernel cannot run here: " + std::string(name));
  return *kernel;
}

// Room for `size` bytes, aligned to 8, that this thread keeps: fresh pages cost more than grouping itself.
u8* kept_scratch(std::size_t size) {
  thread_local std::vector<u64> scratch;
  if (scratch.size() * sizeof(u64) < size) scratch.resize(size / sizeof(u64) + 1);
  return reinterpret_cast<u8*>(scratch.data());
}

// A checked call: views of its inputs, and all of the job but where the result goes.
class Call {
 public:
  Call(nb::handle data, unsigned width, unsigned transform, nb::handle base, unsigned cast, std::string_view kernel)
      : kernel_(demanded_kernel(kernel)), data_(data) {
    require(width == 1 || width == 2 || width == 4 || width == 8, "width must be 1, 2, 4 or 8");
    require(transform <= static_cast<unsigned>(NumberTransform::grouped_float_difference), "transform must be 0 to 4");
    require(cast <= static_cast<unsigned>(NumberCast::f32_to_f16), "cast must be 0, 1 or 2");
    require(cast == 0 || width == 2, "a cast gives elements of 2 bytes");
    require(data_.size() % width == 0, "data must be whole elements");
    require(data_.size() <= size_max, "data is larger than 1 GiB");
    require((transform != 0) == !base.is_none(), "a base belongs to every transform but 0");
    if (!base.is_none()) base_.emplace(base);
    const std::size_t count = data_.size() / width;
    require(!base_ || base_->size() == count * (cast == 0 ? width : 4), "base must have as many elements as data");
    job_ = {data_.data(), nullptr, base_ ? base_->data() : nullptr, nullptr, count, width,
            static_cast<NumberTransform>(transform), static_cast<NumberCast>(cast)};
  }

  // Runs one side of the kernel without the GIL.
  void run(void (*NumbersKernel::*side)(const NumbersJob&), u8* to) {
    const nb::gil_scoped_release released;
    if (job_.transform == NumberTransform::grouped_float_difference) job_.scratch = kept_scratch(size());
    job_.to = to;
    (kernel_.*side)(job_);
  }

  void run_into(void (*NumbersKernel::*side)(const NumbersJob&), nb::handle target) {
    const WriteBuffer view(target);
    require(view.size() == size(), "target must be as large as the data");
    require(!view.overlaps(data_) && !(base_ && view.overlaps(*base_)), "target must not overlap what is read");
    run(side, view.target());
  }

  nb::bytes result(void (*NumbersKernel::*side)(const NumbersJob&)) {
    const NewBytes bytes(size());
    run(side, bytes.data());
    return nb::borrow<nb::bytes>(bytes.object());
  }

 private:
  std::size_t size() const { return data_.size(); }

  const NumbersKernel& kernel_;
  ReadBuffer data_;
  std::optional<ReadBuffer> base_;
  NumbersJob job_;
};

nb::bytes split_numbers(nb::handle data, unsigned width, unsigned transform, nb::handle base, unsigned cast,
                        std::string_view kernel) {
  return Call(data, width, transform, base, cast, kernel).result(&NumbersKernel::split);
}

nb::bytes join_numbers(nb::handle planes, unsigned width, unsigned transform, nb::handle base, unsigned cast,
                       std::string_view kernel) {
  return Call(planes, width, transform, base, cast, kernel).result(&NumbersKernel::join);
}

void split_numbers_into(nb::handle data, nb::handle target, unsigned width, unsigned transform, nb::handle base,
                        unsigned cast, std::string_view kernel) {
  Call(data, width, transform, base, cast, kernel).run_into(&NumbersKernel::split, target);
}

void join_numbers_into(nb::handle planes, nb::handle target, unsigned width, unsigned transform, nb::handle base,
                       unsigned cast, std::string_view kernel) {
  Call(planes, width, transform, base, cast, kernel).run_into(&NumbersKernel::join, target);
}

std::vector<std::string> available_numbers_kernels() {
  std::vector<std::string> names;
  for (const NumbersKernel* kernel : runnable_numbers_kernels()) names.emplace_back(kernel->name);
  return names;
}

}  // namespace

void bind_numbers(nb::module_& module) {
  module.def("available_numbers_kernels", &available_numbers_kernels,
             "Names of the number kernels that this CPU can run, best first.");
  module.def("split_numbers", &split_numbers, "data"_a, "width"_a, "transform"_a, "base"_a = nb::none(), "cast"_a = 0,
             "kernel"_a = "", "Byte planes of elements, back to back.");
  module.def("split_numbers_into", &split_numbers_into, "data"_a, "target"_a, "width"_a, "transform"_a,
             "base"_a = nb::none(), "cast"_a = 0, "kernel"_a = "", "split_numbers into the caller's memory.");
  module.def("join_numbers", &join_numbers, "planes"_a, "width"_a, "transform"_a, "base"_a = nb::none(), "cast"_a = 0,
             "kernel"_a = "", "The elements that split_numbers split.");
  module.def("join_numbers_into", &join_numbers_into, "planes"_a, "target"_a, "width"_a, "transform"_a,
             "base"_a = nb::none(), "cast"_a = 0, "kernel"_a = "", "join_numbers into the caller's memory.");
}
