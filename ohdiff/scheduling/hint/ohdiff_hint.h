/* Tell ohdiff when your job needs the machine, so that backups step aside: include this one file.
 *
 *     struct ohdiff_hint hint;
 *     ohdiff_hint_open(&hint, "machine", 10.0);      // or "cpu", or the UUID of an accelerator
 *     for (...) { ohdiff_hint_begin(&hint); step(); ohdiff_hint_end(&hint); }
 *     ohdiff_hint_close(&hint);
 *
 * It writes 64 bytes into a page in memory at the begin and the end of a step, and never waits for anything. Where that
 * cannot be, every call does nothing, and ohdiff_hint_open returned an errno. Linux, C99 or C++11; no library; any thread
 * may begin and end. A child made by fork must open a hint of its own. Apache-2.0. The layout is that of shared_page.py. */
#ifndef OHDIFF_HINT_H
#define OHDIFF_HINT_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37 /* hidden by some C libraries without _GNU_SOURCE; the number is the kernel's */
#endif
#ifndef O_CLOEXEC
#define O_CLOEXEC 02000000
#endif

enum { OHDIFF_PAGE_SIZE = 4096, OHDIFF_SLOT_SIZE = 64, OHDIFF_VERSION = 1, OHDIFF_CO_RUNNER = 2 };

struct ohdiff_slot {
  uint32_t pid;
  uint8_t kind, job_class, state, busy;
  uint64_t pid_namespace, beat_ns, unit_ns, since_ns, steps, steps_ns, zero;
};

struct ohdiff_hint {
  int fd;
  pid_t pid;
  off_t offset;
  uint64_t pid_namespace, patience_ns, since_ns, steps, steps_ns;
  int busy;
  char writing;
};

static inline uint64_t ohdiff_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void ohdiff_hint_folder(char *path, size_t size) {
  const char *named = getenv("OHDIFF_RUNTIME_DIR"), *session = getenv("XDG_RUNTIME_DIR");
  char usual[64];
  struct stat found;
  const unsigned user = (unsigned)geteuid();
  if (named && *named) {
    snprintf(path, size, "%s", named);
    return;
  }
  snprintf(usual, sizeof usual, "/run/user/%u", user);
  if (!session || !*session) session = usual;
  if (stat(session, &found) == 0 && found.st_uid == geteuid())
    snprintf(path, size, "%s/ohdiff", session);
  else
    snprintf(path, size, "/dev/shm/ohdiff-%u", user);
}

/* 0 if a file or folder is this user's alone. */
static inline int ohdiff_check(int fd, mode_t kind) {
  struct stat found;
  if (fstat(fd, &found) != 0) return errno;
  if ((found.st_mode & S_IFMT) != kind || found.st_uid != geteuid() || (found.st_mode & 077)) return EPERM;
  return kind == S_IFREG && found.st_nlink > 1 ? EPERM : 0;
}

/* Write the header of a new page, or of one that is rubbish; leave another version's alone. */
static inline int ohdiff_prepare(int fd) {
  static const char magic[8] = {'o', 'h', 'd', 'i', 'f', 'f', 0, 'P'};
  char page[OHDIFF_PAGE_SIZE];
  uint32_t version = OHDIFF_VERSION;
  int problem = 0;
  if (flock(fd, LOCK_EX) != 0) return errno;
  memset(page, 0, sizeof page);
  if (pread(fd, page, 12, 0) == 12 && memcmp(page, magic, 8) == 0) {
    memcpy(&version, page + 8, 4);
    if (version != OHDIFF_VERSION) problem = EPROTO;
  } else {
    memset(page, 0, sizeof page);
    memcpy(page, magic, 8);
    memcpy(page + 8, &version, 4);
    if (pwrite(fd, page, sizeof page, 0) != (ssize_t)sizeof page) problem = errno ? errno : EIO;
  }
  flock(fd, LOCK_UN);
  return problem;
}

/* Lock a free slot, from the end: runs of ohdiff begin at the other one. The kernel frees it when we die. */
static inline int ohdiff_claim(struct ohdiff_hint *hint) {
  off_t offset;
  for (offset = OHDIFF_PAGE_SIZE - OHDIFF_SLOT_SIZE; offset > 0; offset -= OHDIFF_SLOT_SIZE) {
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = offset;
    lock.l_len = OHDIFF_SLOT_SIZE;
    if (fcntl(hint->fd, F_OFD_SETLK, &lock) == 0) {
      hint->offset = offset;
      return 0;
    }
    if (errno != EAGAIN && errno != EACCES) return errno;
  }
  return EBUSY;
}

/* One step more or less, told to the page by one thread at a time: an older mark must not cover a newer one. */
static inline uint64_t ohdiff_hint_mark(struct ohdiff_hint *hint, int change, uint64_t began_ns) {
  const uint64_t now = ohdiff_now_ns();
  struct ohdiff_slot slot;
  if (hint->fd < 0) return now;
  memset(&slot, 0, sizeof slot);
  while (__atomic_test_and_set(&hint->writing, __ATOMIC_ACQUIRE)) {
  }
  hint->busy += change;
  if (change < 0) {
    hint->steps++;
    hint->steps_ns += now - (began_ns ? began_ns : hint->since_ns);
  }
  if (change != 0 && hint->busy == (change > 0 ? 1 : 0)) hint->since_ns = now;
  slot.pid = (uint32_t)hint->pid;
  slot.kind = OHDIFF_CO_RUNNER;
  slot.busy = hint->busy > 0;
  slot.pid_namespace = hint->pid_namespace;
  slot.beat_ns = now;
  slot.unit_ns = hint->patience_ns;
  slot.since_ns = hint->since_ns;
  slot.steps = hint->steps;
  slot.steps_ns = hint->steps_ns;
  if (pwrite(hint->fd, &slot, sizeof slot, hint->offset) < 0) { /* a hint that is not given does no harm */
  }
  __atomic_clear(&hint->writing, __ATOMIC_RELEASE);
  return now;
}

/* The file of a page. A UUID is meant as nvidia-smi writes it, with GPU- in front and small letters. */
static inline void ohdiff_page_name(char *name, size_t size, const char *device) {
  const char *uuid = device + (strncmp(device, "GPU-", 4) == 0 ? 4 : 0);
  int is_uuid = strlen(uuid) == 36 && strspn(uuid, "0123456789abcdefABCDEF-") == 36;
  size_t i;
  snprintf(name, size, "%s%s.page", is_uuid ? "GPU-" : "", is_uuid ? uuid : device);
  for (i = 4; is_uuid && i < 40; i++)
    if (name[i] >= 'A' && name[i] <= 'F') name[i] = (char)(name[i] - 'A' + 'a');
}

static inline void ohdiff_hint_close(struct ohdiff_hint *hint) {
  char nothing[OHDIFF_SLOT_SIZE];
  if (hint->fd < 0) return;
  memset(nothing, 0, sizeof nothing);
  if (hint->offset > 0 && hint->pid == getpid() && pwrite(hint->fd, nothing, sizeof nothing, hint->offset) < 0) {
  }
  close(hint->fd);
  hint->fd = -1;
}

/* step_seconds_max: a step that is still not over by then is taken for a process that was stopped.
 * Returns 0, or the errno of what made it impossible; EPROTO for a page of another version, EBUSY for a full one. */
static inline int ohdiff_hint_open(struct ohdiff_hint *hint, const char *device, double step_seconds_max) {
  char folder[4096], name[80];
  struct stat found;
  int folder_fd, problem;
  memset(hint, 0, sizeof *hint);
  hint->fd = -1;
  hint->pid = getpid();
  hint->patience_ns = (uint64_t)(step_seconds_max * 1e9);
  if (!*device || strlen(device) > 64 || strchr(device, '/') || strchr(".-_", *device)) return EINVAL;
  ohdiff_hint_folder(folder, sizeof folder);
  ohdiff_page_name(name, sizeof name, device);
  if (mkdir(folder, 0700) != 0 && errno != EEXIST) return errno;
  folder_fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder_fd < 0) return errno;
  problem = ohdiff_check(folder_fd, S_IFDIR);
  if (!problem) {
    hint->fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
    if (hint->fd < 0) problem = errno;
  }
  close(folder_fd);
  if (!problem) problem = ohdiff_check(hint->fd, S_IFREG);
  if (!problem) problem = ohdiff_prepare(hint->fd);
  if (!problem) problem = ohdiff_claim(hint);
  if (problem) {
    ohdiff_hint_close(hint);
    return problem;
  }
  if (stat("/proc/self/ns/pid", &found) == 0) hint->pid_namespace = (uint64_t)found.st_ino;
  ohdiff_hint_mark(hint, 0, 0);
  return 0;
}

/* The device is needed from now on. Returns the time, for ohdiff_hint_end_of where steps overlap. */
static inline uint64_t ohdiff_hint_begin(struct ohdiff_hint *hint) { return ohdiff_hint_mark(hint, 1, 0); }

/* A step that began at `began_ns` is over. */
static inline void ohdiff_hint_end_of(struct ohdiff_hint *hint, uint64_t began_ns) {
  ohdiff_hint_mark(hint, -1, began_ns);
}

/* The same where steps do not overlap. */
static inline void ohdiff_hint_end(struct ohdiff_hint *hint) { ohdiff_hint_mark(hint, -1, 0); }

#endif
