// list_names: every name in a directory, in byte order.
#include <dirent.h>

#include <algorithm>
#include <cstring>

#include "python.hpp"

namespace ohdiff::posix {
namespace {

// The first eight bytes as a number settle most comparisons of the sort without touching the text.
struct Name {
  std::uint64_t prefix;
  std::size_t offset;
  std::size_t length;
};

std::uint64_t prefix_of(const char* text, std::size_t length) {
  std::uint64_t prefix = 0;
  for (std::size_t i = 0; i < 8; ++i)
    prefix = prefix << 8 | (i < length ? static_cast<unsigned char>(text[i]) : 0);
  return prefix;
}

class Names {
 public:
  void add(const char* text) {
    const std::size_t length = std::strlen(text);
    names_.push_back({prefix_of(text, length), text_.size(), length});
    text_.append(text, length);
  }

  // Some file systems list a name twice while their directory changes; a listing has it once.
  void sort() {
    std::sort(names_.begin(), names_.end(), [this](const Name& a, const Name& b) { return compare(a, b) < 0; });
    const auto end = std::unique(names_.begin(), names_.end(),
                                 [this](const Name& a, const Name& b) { return compare(a, b) == 0; });
    names_.erase(end, names_.end());
  }

  nb::list to_list() const {
    return make_list(names_.size(), [this](std::size_t row) {
      const Name& name = names_[row];
      return nb::steal(
          PyBytes_FromStringAndSize(text_.data() + name.offset, static_cast<Py_ssize_t>(name.length)));
    });
  }

 private:
  int compare(const Name& a, const Name& b) const {
    if (a.prefix != b.prefix) return a.prefix < b.prefix ? -1 : 1;
    const std::size_t common = std::min(a.length, b.length);
    const int order = std::memcmp(text_.data() + a.offset, text_.data() + b.offset, common);
    if (order != 0 || a.length == b.length) return order;
    return a.length < b.length ? -1 : 1;
  }

  std::string text_;
  std::vector<Name> names_;
};

class OpenDirectory {
 public:
  explicit OpenDirectory(int dir_fd) {
    const int own_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 0);
    if (own_fd < 0) throw_errno();
    stream_ = fdopendir(own_fd);
    if (!stream_) {
      const int error = errno;
      ::close(own_fd);
      throw_errno(error);
    }
    rewinddir(stream_);
  }
  OpenDirectory(const OpenDirectory&) = delete;
  OpenDirectory& operator=(const OpenDirectory&) = delete;
  ~OpenDirectory() { closedir(stream_); }

  // The next name, or null at the end.
  const char* next() {
    errno = 0;
    const dirent* entry = readdir(stream_);
    if (!entry && errno != 0) throw_errno();
    return entry ? entry->d_name : nullptr;
  }

 private:
  DIR* stream_;
};

bool is_dots(const char* name) { return std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0; }

nb::list list_names(int dir_fd) {
  Names names;
  {
    nb::gil_scoped_release unlocked;
    OpenDirectory directory(dir_fd);
    while (const char* name = directory.next())
      if (!is_dots(name)) names.add(name);
    names.sort();
  }
  return names.to_list();
}

}  // namespace

void bind_listing(nb::module_& module) {
  module.def("list_names", &list_names, nb::arg("dir_fd"));
}

}  // namespace ohdiff::posix
