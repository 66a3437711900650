// Python bindings of the resemblance table (resemblance.hpp): buffers in, bytes out, the GIL released while working.
// System failures become OSError with errno and filename, bad arguments ValueError, objects that are no buffers
// TypeError.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bind_table.hpp"
#include "python_buffer.hpp"
#include "resemblance.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace ohdiff;

constexpr std::size_t kFeaturesSize = feature_count * sizeof(u32);

// Empty for None: a table in memory.
std::string table_name(nb::handle path) {
  if (path.is_none()) return {};
  const auto name = file_name(path);
  if (name.empty()) throw std::invalid_argument("the path is empty");
  return name;
}

// A copy, because a buffer need not be aligned for integers.
std::vector<u32> checked_features(const ReadBuffer& buffer) {
  if (buffer.size() % kFeaturesSize != 0) throw std::invalid_argument("features are not 48 bytes a chunk");
  std::vector<u32> features(buffer.size() / sizeof(u32));
  if (!features.empty()) std::memcpy(features.data(), buffer.data(), buffer.size());
  return features;
}

void open_table(ResemblanceTable* place, const nb::object& path, std::uint64_t chunk_count_max, const nb::bytes& tag,
                bool is_writable) {
  const auto name = table_name(path);
  const auto checked_tag = table_tag(tag);
  without_gil([&] { new (place) ResemblanceTable(name, chunk_count_max, checked_tag, is_writable); });
}

void add_chunks(ResemblanceTable& table, const nb::object& features, const nb::object& prefixes) {
  const ReadBuffer feature_view(features), prefix_view(prefixes);
  const auto rows = checked_features(feature_view);
  const auto count = rows.size() / feature_count;
  if (prefix_view.size() != count * kPrefixSize)
    throw std::invalid_argument("features and prefixes are not of the same chunks");
  without_gil([&] { table.add(rows.data(), prefix_view.data(), count); });
}

nb::tuple find_chunks(ResemblanceTable& table, const nb::object& features, u32 equal_min) {
  if (equal_min < 1 || equal_min > feature_count) throw std::invalid_argument("equal_min is not between 1 and 12");
  const ReadBuffer view(features);
  const auto rows = checked_features(view);
  const auto count = rows.size() / feature_count;
  std::vector<std::uint8_t> prefixes(count * kPrefixSize), equal_counts(count);
  without_gil([&] { table.find(rows.data(), count, equal_min, prefixes.data(), equal_counts.data()); });
  return nb::make_tuple(nb::bytes(prefixes.data(), prefixes.size()), nb::bytes(equal_counts.data(), count));
}

constexpr char kTableDoc[] = R"(Which earlier chunk shares most features with a new one; kept in a file, or in memory.

Holds the latest chunks up to a bound, each with 12 features and the first 16 bytes of its id. Any number of threads
may use it; they take turns. What it answers is a hint: the chunk may be gone, or may not be worth a difference.

Parameters
----------
path : str, bytes, os.PathLike or None
    None keeps everything in memory. A file that is missing, damaged, of another version or under another tag is begun
    anew, by a new file in its place. Of one that is larger than the bound, the newest chunks are kept.
chunk_count_max : int
    128 to 2^24, rounded down to a power of two: how far the table grows, by doubling, at 96 bytes a chunk.
tag : bytes
    32 bytes that name what features and prefixes mean: the repository, and the keyed words of the rule.
is_writable : bool
    False: what is added is seen here and never written. One process may write a file at a time, which the caller
    sees to; others may read it meanwhile.

Raises
------
OSError
    The file is there and cannot be opened.
ValueError
    A size is out of bounds.
)";

constexpr char kFindDoc[] = R"(The chunk that shares most features with each of these, the newest of several.

Parameters
----------
features : uint32[chunks * 12]
    Chunks whose features are all 0 resemble nothing.
equal_min : int
    1 to 12: fewer equal features are no resemblance.

Returns
-------
prefixes : uint8[chunks * 16]
    Zeros where nothing resembles the chunk.
equal_counts : uint8[chunks]
    How many features are equal, 0 where nothing resembles the chunk.
)";

}  // namespace

void bind_resemblance(nb::module_& module) {
  nb::class_<ResemblanceTable>(module, "ResemblanceTable", kTableDoc)
      .def("__init__", &open_table, nb::arg("path").none(), "chunk_count_max"_a, "tag"_a, "is_writable"_a = true)
      .def("add", &add_chunks, "features"_a, "prefixes"_a,
           "Remember chunks: uint32[chunks * 12] and uint8[chunks * 16]. Chunks whose features are all 0 are left out.")
      .def("find", &find_chunks, "features"_a, "equal_min"_a = 2, kFindDoc)
      .def("flush", [](ResemblanceTable& table) { without_gil([&] { table.flush(); }); },
           "Write what is new to the file, without waiting for the disk; OSError when that fails.")
      .def("close", [](ResemblanceTable& table) { without_gil([&] { table.close(); }); },
           "Release the file and the memory; what was not flushed is lost. Closing twice is harmless.")
      .def_prop_ro("chunk_count",
                   [](ResemblanceTable& table) { return without_gil([&] { return table.chunk_count(); }); },
                   "Chunks that can be found.")
      .def_prop_ro("capacity", [](ResemblanceTable& table) { return without_gil([&] { return table.capacity(); }); },
                   "Chunks that the table holds before it grows, or forgets the oldest.")
      .def_prop_ro("resident_bytes",
                   [](ResemblanceTable& table) { return without_gil([&] { return table.resident_bytes(); }); },
                   "Memory for the table; pages of a file count once they were read.");
}
