// Python bindings of the CPU chunker (scan.hpp): buffers in, little-endian bytes out, the GIL released while working.
// Bad arguments become ValueError, objects that are no buffers TypeError. A buffer must not shrink or lose its pages
// (a mapped file that is truncated) during a call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <cstring>
#include <stdexcept>

#include "python_buffer.hpp"
#include "scan.hpp"

namespace nb = nanobind;
using namespace nb::literals;

// Cut points and hashes leave as they lie in memory, and Python reads them as little-endian.
static_assert(std::endian::native == std::endian::little);

namespace {

using namespace ohdiff;

constexpr u64 largest_max_size = u64{1} << 30;

template <class Value>
nb::bytes to_bytes(const std::vector<Value>& values) {
  return nb::bytes(values.data(), values.size() * sizeof(Value));
}

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

std::vector<u64> offsets_from_buffer(nb::handle object) {
  const ReadBuffer buffer(object);
  require(buffer.size() % sizeof(u64) == 0, "offsets as bytes must be 64-bit integers");
  std::vector<u64> offsets(buffer.size() / sizeof(u64));
  if (!offsets.empty()) std::memcpy(offsets.data(), buffer.data(), buffer.size());
  return offsets;
}

std::vector<u64> offsets_from_integers(nb::handle object) {
  std::vector<u64> offsets;
  if (!nb::try_cast(object, offsets)) throw nb::type_error("offsets must be a buffer of uint64 or integers from 0");
  return offsets;
}

// Exclusive ends of adjoining byte ranges: ascending, and none beyond `size`.
std::vector<u64> checked_offsets(nb::handle object, std::size_t size) {
  std::vector<u64> offsets =
      PyObject_CheckBuffer(object.ptr()) ? offsets_from_buffer(object) : offsets_from_integers(object);
  u64 last = 0;
  for (const u64 offset : offsets) {
    require(offset >= last, "offsets must ascend");
    last = offset;
  }
  require(last <= size, "an offset lies beyond the data");
  return offsets;
}

CutLimits checked_limits(const CutLimits& limits) {
  require(limits.min_size >= smallest_min_size, "min_size is below 128");
  require(limits.min_size < limits.avg_size && limits.avg_size < limits.max_size, "sizes must be min < avg < max");
  require(limits.max_size <= largest_max_size, "max_size is above 1 GiB");
  require(limits.threshold_strict > 0 && limits.threshold_strict <= limits.threshold_loose,
          "thresholds must be 0 < strict <= loose");
  return limits;
}

RuleTables checked_tables(const nb::bytes& words, u32 threshold_loose) {
  u32 values[32];
  require(words.size() == sizeof(values), "words must be 32 integers of 32 bits");
  std::memcpy(values, words.c_str(), sizeof(values));
  const RuleTables tables = make_tables(values);
  for (const u32 term : tables.term) {
    require(run_hash(term) >= threshold_loose, "words make a run of one byte a candidate");
  }
  return tables;
}

const Kernel& demanded_kernel(std::string_view name) {
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr) throw std::invalid_argument("kernel cannot run here: " + std::string(name));
  return *kernel;
}

// Immutable, hence safe to share between threads.
class Chunker {
 public:
  Chunker(const nb::bytes& words, u64 min_size, u64 avg_size, u64 max_size, u32 threshold_strict, u32 threshold_loose,
          std::string_view kernel)
      : rule_{checked_limits({min_size, avg_size, max_size, threshold_strict, threshold_loose}),
              checked_tables(words, threshold_loose)},
        kernel_(demanded_kernel(kernel)) {}

  nb::tuple cut_segments(nb::handle data, nb::handle segment_ends) const {
    const ReadBuffer buffer(data);
    const std::vector<u64> ends = checked_offsets(segment_ends, buffer.size());
    std::vector<u64> cuts;
    std::vector<u32> counts;
    {
      const nb::gil_scoped_release released;
      counts.reserve(ends.size());
      cuts.reserve(ends.size() + buffer.size() / rule_.limits.avg_size);
      u64 start = 0;
      for (const u64 end : ends) {
        const std::size_t before = cuts.size();
        append_cuts(buffer.data(), start, end, true, cuts);
        counts.push_back(static_cast<u32>(cuts.size() - before));
        start = end;
      }
    }
    return nb::make_tuple(to_bytes(cuts), to_bytes(counts));
  }

  nb::bytes cut_stream(nb::handle data, bool is_last) const {
    const ReadBuffer buffer(data);
    std::vector<u64> cuts;
    {
      const nb::gil_scoped_release released;
      append_cuts(buffer.data(), 0, buffer.size(), is_last, cuts);
    }
    return to_bytes(cuts);
  }

  nb::tuple candidates(nb::handle data) const {
    const ReadBuffer buffer(data);
    CandidateLists lists;
    {
      const nb::gil_scoped_release released;
      lists = all_candidates(rule_, kernel_, buffer.data(), buffer.size());
    }
    return nb::make_tuple(to_bytes(lists.positions), to_bytes(lists.hashes));
  }

  nb::bytes features(nb::handle data, nb::handle cuts) const {
    const ReadBuffer buffer(data);
    const std::vector<u64> ends = checked_offsets(cuts, buffer.size());
    std::vector<u32> result(ends.size() * feature_count);
    {
      const nb::gil_scoped_release released;
      u64 start = 0;
      u32* features = result.data();
      for (const u64 end : ends) {
        kernel_.features(buffer.data() + start, end - start, rule_.tables, features);
        features += feature_count;
        start = end;
      }
    }
    return to_bytes(result);
  }

  const char* kernel() const { return kernel_.name; }
  const CutLimits& limits() const { return rule_.limits; }

 private:
  void append_cuts(const u8* data, u64 start, u64 end, bool is_last, std::vector<u64>& cuts) const {
    if (is_last && end - start <= rule_.limits.min_size) {  // most files of a source tree
      if (end > start) cuts.push_back(end);
      return;
    }
    SegmentCutter cutter(rule_, kernel_, data + start, end - start, is_last);
    while (const std::size_t cut = cutter.next()) cuts.push_back(start + cut);
  }

  Rule rule_;
  const Kernel& kernel_;
};

std::vector<std::string> available_kernels() {
  std::vector<std::string> names;
  for (const Kernel* kernel : runnable_kernels()) names.emplace_back(kernel->name);
  return names;
}

}  // namespace

void bind_chunker(nb::module_& module) {
  module.def("available_kernels", &available_kernels, "Names of the kernels that this CPU can run, best first.");
  nb::class_<Chunker>(module, "Chunker", "Rule g32s2/1 on the CPU by one kernel; immutable, and safe between threads.")
      .def(nb::init<const nb::bytes&, u64, u64, u64, u32, u32, std::string_view>(), "words"_a, "min_size"_a,
           "avg_size"_a, "max_size"_a, "threshold_strict"_a, "threshold_loose"_a, "kernel"_a)
      .def_prop_ro("kernel", &Chunker::kernel)
      .def_prop_ro("min_size", [](const Chunker& chunker) { return chunker.limits().min_size; })
      .def_prop_ro("avg_size", [](const Chunker& chunker) { return chunker.limits().avg_size; })
      .def_prop_ro("max_size", [](const Chunker& chunker) { return chunker.limits().max_size; })
      .def_prop_ro("threshold_strict", [](const Chunker& chunker) { return chunker.limits().threshold_strict; })
      .def_prop_ro("threshold_loose", [](const Chunker& chunker) { return chunker.limits().threshold_loose; })
      .def("cut_segments", &Chunker::cut_segments, "data"_a, "segment_ends"_a,
           "Cut many whole files that lie back to back: (cut points as u64, number of cuts per segment as u32).")
      .def("cut_stream", &Chunker::cut_stream, "data"_a, "is_last"_a,
           "Cut points, as u64, that are final for data which begins at a chunk start of a file.")
      .def("candidates", &Chunker::candidates, "data"_a,
           "Every candidate of data as one file: (positions as u64, hashes as u32).")
      .def("features", &Chunker::features, "data"_a, "cuts"_a, "Twelve u32 resemblance features of every chunk.");
}
