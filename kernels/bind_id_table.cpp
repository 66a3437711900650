// Python bindings of the sorted id table (id_table.hpp): buffers in, bytes out, the GIL released while working.
// System failures become OSError with errno and filename; damaged files and bad arguments become ValueError.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "bind_table.hpp"
#include "id_table.hpp"
#include "python_buffer.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace ohdiff;

// An IdTable that can be closed while other threads still search it: each search holds its own share.
class SharedTable {
 public:
  explicit SharedTable(const nb::object& path)
      : table_(without_gil([name = file_name(path)] { return std::make_shared<const IdTable>(name); })) {}
  std::shared_ptr<const IdTable> get() const {
    const std::lock_guard lock(mutex_);
    if (!table_) throw std::invalid_argument("the id table is closed");
    return table_;
  }
  void close() {
    std::shared_ptr<const IdTable> last;  // outlives the lock, so that closing the file is outside it
    const std::lock_guard lock(mutex_);
    last.swap(table_);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const IdTable> table_;
};

nb::tuple find_keys(const SharedTable& shared, const nb::object& keys) {
  const auto table = shared.get();
  const auto shape = table->rows().shape();
  const ReadBuffer view(keys);
  if (view.bytes().size() % shape.key_size != 0) throw std::invalid_argument("keys are not a multiple of key_size");
  const auto count = view.bytes().size() / shape.key_size;
  const NewBytes found(count), values(count * shape.value_size);
  without_gil([&] { table->find(view.bytes(), found.data(), values.data()); });
  return nb::make_tuple(found.object(), values.object());
}

nb::tuple iterate_rows(const SharedTable& shared, std::int64_t start, std::int64_t count) {
  const auto table = shared.get();
  const auto shape = table->rows().shape();
  if (start < 0 || count < 0) throw std::invalid_argument("start and count are not negative");
  const auto first = std::min(static_cast<std::uint64_t>(start), table->rows().count());
  const auto last = first + std::min(static_cast<std::uint64_t>(count), table->rows().count() - first);
  const NewBytes keys((last - first) * shape.key_size), values((last - first) * shape.value_size);
  without_gil([&] { table->iterate(first, last, keys.data(), values.data()); });
  return nb::make_tuple(keys.object(), values.object());
}

std::uint64_t write_table(const nb::object& path, const nb::object& keys, const nb::object& values,
                          std::uint64_t key_size, std::uint64_t value_size, const nb::bytes& tag) {
  const auto shape = checked_shape(key_size, value_size);
  const auto name = file_name(path);
  const auto checked_tag = table_tag(tag);
  const ReadBuffer key_view(keys), value_view(values);
  const auto count = key_view.bytes().size() / shape.key_size;
  if (key_view.bytes().size() % shape.key_size != 0 || value_view.bytes().size() != count * shape.value_size)
    throw std::invalid_argument("keys and values do not hold the same whole number of rows");
  return without_gil(
      [&] { return write_id_table(name, key_view.bytes(), value_view.bytes(), shape, checked_tag); });
}

std::uint64_t merge_tables(const std::vector<nb::object>& inputs, const nb::object& output,
                           const std::vector<std::int64_t>& first_word_bias, const nb::bytes& tag) {
  std::vector<std::string> names;
  for (const auto& input : inputs) names.push_back(file_name(input));
  const auto output_name = file_name(output);
  const auto checked_tag = table_tag(tag);
  return without_gil([&] { return merge_id_tables(names, output_name, first_word_bias, checked_tag); });
}

constexpr char kWriteDoc[] = R"(Write rows to a new table file, sorted by key, and fsync it.

Parameters
----------
path : str, bytes or os.PathLike
    Written in place: pass a temporary name and rename it when this returns. A table that is open elsewhere must not
    be overwritten. After an exception the incomplete file stays; opening it is refused.
keys : bytes-like
    ``n * key_size`` bytes, in any order, uniformly distributed (others are correct, but slow). Not to be changed
    during the call. The first of equal keys is kept.
values : bytes-like
    ``n * value_size`` bytes.
key_size : int
    16 or 32.
value_size : int
    A multiple of 4 from 4 to 256.
tag : bytes
    32 bytes for the caller's own use, kept in the header.

Returns
-------
int
    The number of rows in the table, at most 4294967295.

Raises
------
OSError
    With errno and filename, from the file system.
ValueError
    The sizes do not fit together.
)";

constexpr char kMergeDoc[] = R"(Merge tables into one, with bounded memory, and fsync it.

Parameters
----------
inputs : list of str, bytes or os.PathLike
    Tables with the same key and value size; at least one.
output : str, bytes or os.PathLike
    As `path` of `write_id_table`; none of the inputs.
first_word_bias : list of int
    For each input, what is added to the little-endian 32-bit word at the start of each of its values.
tag : bytes
    32 bytes for the caller's own use; the tags of the inputs are not looked at.

Returns
-------
int
    The number of rows. Of equal keys the row of the earliest input is kept.

Raises
------
OSError
    With errno and filename, from the file system.
ValueError
    An input is damaged or no table, shapes differ, or a biased word does not fit 32 bits: the output is incomplete.
)";

constexpr char kTableDoc[] = R"(A table file opened for look-ups; any number of threads may use it at once.

The filter and the directory are read into memory and checked; rows are read from the file when asked for and are not
checksummed, so the caller verifies what a row leads to by its id.

Parameters
----------
path : str, bytes or os.PathLike

Raises
------
OSError
    With errno and filename, from the file system.
ValueError
    The file is damaged or no table of this version: remove it and build it again.
)";

constexpr char kFindDoc[] = R"(Look up many keys at once: the more in one call, the more neighbours are read together.

Parameters
----------
keys : bytes-like
    ``n * key_size`` bytes, in any order, repeats allowed.

Returns
-------
found : bytes
    ``n`` bytes, 1 where the key is in the table and 0 elsewhere.
values : bytes
    ``n * value_size`` bytes, zeros where the key is absent.

Raises
------
OSError
    With errno and filename, from the file system.
ValueError
    The table is closed, the file was cut short since it was opened, or `keys` is no multiple of ``key_size``.
)";

constexpr char kIterateDoc[] = R"(The keys and values of rows ``[start, start + count)`` in key order.

Rows past the last one are left out, as in a slice.

Returns
-------
keys, values : bytes
    ``key_size`` and ``value_size`` bytes a row.
)";

void bind_table_properties(nb::class_<SharedTable>& table) {
  table.def_prop_ro("count", [](const SharedTable& shared) { return shared.get()->rows().count(); }, "Number of rows.")
      .def_prop_ro("key_size", [](const SharedTable& shared) { return shared.get()->rows().shape().key_size; },
                   "Bytes in a key.")
      .def_prop_ro("value_size", [](const SharedTable& shared) { return shared.get()->rows().shape().value_size; },
                   "Bytes in a value.")
      .def_prop_ro("tag", [](const SharedTable& shared) {
            const auto table = shared.get();
            return nb::bytes(table->rows().tag().data(), table->rows().tag().size());
          }, "The writer's 32 bytes.")
      .def_prop_ro("resident_bytes", [](const SharedTable& shared) { return shared.get()->resident_bytes(); },
                   "Bytes of filter and directory held in memory.")
      .def_prop_ro("filter_pass_count", [](const SharedTable& shared) { return shared.get()->filter_pass_count(); },
                   "Keys the filter has let through since opening: those found and its false positives.");
}

}  // namespace

void bind_id_table(nb::module_& module) {
  module.def("write_id_table", &write_table, "path"_a, "keys"_a, "values"_a, "key_size"_a, "value_size"_a, "tag"_a,
             nb::sig("def write_id_table(path: str | bytes | os.PathLike[str], keys: bytes | bytearray | memoryview, "
                     "values: bytes | bytearray | memoryview, key_size: int, value_size: int, tag: bytes) -> int"),
             kWriteDoc);
  module.def("merge_id_tables", &merge_tables, "inputs"_a, "output"_a, "first_word_bias"_a, "tag"_a,
             nb::sig("def merge_id_tables(inputs: collections.abc.Sequence[str | bytes | os.PathLike[str]], "
                     "output: str | bytes | os.PathLike[str], first_word_bias: collections.abc.Sequence[int], "
                     "tag: bytes) -> int"),
             kMergeDoc);
  nb::class_<SharedTable> table(module, "IdTable", kTableDoc);
  table
      .def(nb::init<const nb::object&>(), "path"_a,
           nb::sig("def __init__(self, path: str | bytes | os.PathLike[str]) -> None"))
      .def("find", &find_keys, "keys"_a,
           nb::sig("def find(self, keys: bytes | bytearray | memoryview) -> tuple[bytes, bytes]"), kFindDoc)
      .def("iterate", &iterate_rows, "start"_a, "count"_a,
           nb::sig("def iterate(self, start: int, count: int) -> tuple[bytes, bytes]"), kIterateDoc)
      .def("close", &SharedTable::close,
           "Release the file and the memory, once running look-ups are done. Closing twice is harmless.");
  bind_table_properties(table);
}
