// dress_plain: owner, times and mode of an entry that has nothing else to it, in one call.
#include "python.hpp"

namespace ohdiff::posix {
namespace {

constexpr std::uint32_t mode_bits = 07777;

struct Dress {
  std::uint32_t mode;
  std::int64_t mtime_ns;
  std::int64_t uid, gid;  // -1 leaves it
};

bool is_unset_or(std::int64_t id, std::uint32_t present) { return id < 0 || id == static_cast<std::int64_t>(present); }

bool has_removable_xattrs(int dir_fd, const char* name) {
  XattrTarget target(dir_fd, best_xattr_way());
  Xattrs present;
  if (target.aim_at(name) != 0 || XattrReader().read(target, present) != 0) return true;
  for (const Xattr& xattr : present)
    if (is_removable_xattr(xattr.name)) return true;
  return false;
}

bool dress(int dir_fd, const char* name, const Dress& wanted) {
  Status present;
  if (read_status(dir_fd, name, present) != 0) return false;
  if (present.flags != 0 || (present.mode & S_IFMT) != (wanted.mode & S_IFMT)) return false;
  if (has_removable_xattrs(dir_fd, name)) return false;
  const bool is_owned = is_unset_or(wanted.uid, present.uid) && is_unset_or(wanted.gid, present.gid);
  if (!is_owned && fchownat(dir_fd, name, static_cast<uid_t>(wanted.uid), static_cast<gid_t>(wanted.gid),
                            AT_SYMLINK_NOFOLLOW) != 0)
    return false;
  const timespec time = to_timespec(wanted.mtime_ns);
  const timespec times[2] = {time, time};
  if (retry_interrupted([&] { return utimensat(dir_fd, name, times, AT_SYMLINK_NOFOLLOW); }) != 0) return false;
  // A new owner clears set-id bits.
  if (S_ISLNK(wanted.mode) || (is_owned && ((present.mode ^ wanted.mode) & mode_bits) == 0)) return true;
  try {
    change_mode(dir_fd, name, static_cast<mode_t>(wanted.mode & mode_bits));
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

bool dress_plain(int dir_fd, const nb::bytes& name, std::uint32_t mode, std::int64_t mtime_ns, std::int64_t uid,
                 std::int64_t gid) {
  constexpr std::int64_t highest_id = std::numeric_limits<std::uint32_t>::max() - 1;  // the last means "leave it"
  const char* text = checked_name(name);
  if (uid < -1 || gid < -1 || uid > highest_id || gid > highest_id) throw std::invalid_argument("no such owner");
  nb::gil_scoped_release unlocked;
  return dress(dir_fd, text, {mode, mtime_ns, uid, gid});
}

}  // namespace

void bind_dressing(nb::module_& module) {
  module.def("dress_plain", &dress_plain, nb::arg("dir_fd"), nb::arg("name"), nb::arg("mode"), nb::arg("mtime_ns"),
             nb::arg("uid"), nb::arg("gid"));
}

}  // namespace ohdiff::posix
