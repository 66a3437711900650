// Breaks: taken between the steps of our own loops, and, in computations of libraries that have no such places, from a
// signal that a timer of the thread's own sends it. The timer runs only while `Breaks` is entered, around code that
// computes: a signal would interrupt system calls, and not every file system takes that well.
#include "breaks.hpp"

#include <atomic>
#include <cerrno>

#include "python.hpp"

#ifdef __linux__
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#endif

namespace ohdiff::posix {

#ifdef __linux__
namespace {

constexpr long second_ns = 1'000'000'000;
// A thread that was kept from its core for at least as long was kept by another; for longer than the second, by one
// that works for longer than a break lasts.
constexpr long visit_min_ns = 40'000, visit_max_ns = 3'000'000;
constexpr long wake_ns = 20'000;  // from the end of a sleep to work again, when nobody is there
constexpr int signal_offset = 5;  // from SIGRTMIN; those below are the C library's, or often taken

std::atomic<long> work_ns{0};  // 0: no breaks
std::atomic<long> short_ns{0};
std::atomic<long> long_ns{0};
std::atomic<long> count_short{0}, count_long{0};
// Whoever is met on one core has work that goes on on others, so that all threads rest.
std::atomic<long> rest_until_ns{0};

long now_ns(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * second_ns + time.tv_nsec;
}

void sleep_ns(long duration) {
  const timespec time{duration / second_ns, duration % second_ns};
  nanosleep(&time, nullptr);
}

// What a thread knows of its last break. Plain numbers, for a signal's handler.
struct Last {
  long wall = 0, processor = 0;
  unsigned seen = 0;
  const std::atomic<unsigned>* core = nullptr;
};
thread_local Last last;

// How often threads of ours were seen on each core: what keeps one of them from it may be another of them.
constexpr unsigned cores_max = 1024;
std::atomic<unsigned> seen[cores_max];

std::atomic<unsigned>& seen_here() {
  const int core = sched_getcpu();
  return seen[core < 0 ? 0 : static_cast<unsigned>(core) % cores_max];
}

void mark_break() {
  std::atomic<unsigned>& core = seen_here();
  last = {now_ns(CLOCK_MONOTONIC), now_ns(CLOCK_THREAD_CPUTIME_ID), ++core, &core};
}

// Whether somebody else used the core for a moment while this thread wanted it.
bool was_visit(long kept_ns) { return kept_ns > visit_min_ns && kept_ns < visit_max_ns; }

// A short break, and a long one of all threads if somebody else was at work: who comes for a moment comes again.
void take_break(bool was_computing) {
  const long began = now_ns(CLOCK_MONOTONIC);
  const long kept = began - last.wall - (now_ns(CLOCK_THREAD_CPUTIME_ID) - last.processor);
  bool had_visit = was_computing && was_visit(kept) && last.core->load() == last.seen;
  std::atomic<unsigned>& core = seen_here();
  const unsigned before = ++core;
  const long nap = short_ns.load(std::memory_order_relaxed);
  sleep_ns(nap);
  had_visit |= was_visit(now_ns(CLOCK_MONOTONIC) - began - nap - wake_ns) && core.load() == before;
  count_short.fetch_add(1, std::memory_order_relaxed);
  if (had_visit) {
    rest_until_ns.store(now_ns(CLOCK_MONOTONIC) + long_ns.load(std::memory_order_relaxed), std::memory_order_relaxed);
    count_long.fetch_add(1, std::memory_order_relaxed);
  }
  const long rest = rest_until_ns.load(std::memory_order_relaxed) - now_ns(CLOCK_MONOTONIC);
  if (rest > 0) sleep_ns(rest);
  mark_break();
}

void on_signal(int) {
  const int error = errno;
  if (work_ns.load(std::memory_order_relaxed) != 0) take_break(true);
  errno = error;
}

// Whether the signal is ours: false where somebody else has taken it.
bool has_signal() {
  static const bool is_ours = [] {
    struct sigaction before;
    const int number = SIGRTMIN + signal_offset;
    if (sigaction(number, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return false;
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    return sigaction(number, &action, nullptr) == 0;
  }();
  return is_ours;
}

void set_precise_sleep() {
  thread_local const bool is_set = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) == 0;
  static_cast<void>(is_set);
}

// The calling thread's timer.
class Timer {
 public:
  ~Timer() {
    if (is_made_) timer_delete(timer_);
  }

  void start() {
    if (depth_++ > 0) return;
    const long period = work_ns.load(std::memory_order_relaxed);
    if (period == 0 || !has_signal() || !make()) return;
    set_precise_sleep();
    mark_break();
    is_running_ = set(period);
  }

  void stop() {
    if (--depth_ > 0 || !is_running_) return;
    set(0);
    is_running_ = false;
  }

 private:
  bool make() {
    if (is_made_) return true;
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGRTMIN + signal_offset;
#ifdef sigev_notify_thread_id
    event.sigev_notify_thread_id = static_cast<pid_t>(syscall(SYS_gettid));
#else
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
#endif
    is_made_ = timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
    return is_made_;
  }

  bool set(long period) {
    const itimerspec times{{0, period}, {0, period}};
    return timer_settime(timer_, 0, &times, nullptr) == 0;
  }

  timer_t timer_ = {};
  int depth_ = 0;
  bool is_made_ = false, is_running_ = false;
};
thread_local Timer timer;

}  // namespace

void break_if_due() {
  const long period = work_ns.load(std::memory_order_relaxed);
  if (period == 0) return;
  set_precise_sleep();
  if (now_ns(CLOCK_MONOTONIC) - last.wall >= period) take_break(false);
}

namespace {

void set_breaks(double work_us, double short_us, double long_us) {
  const auto to_ns = [](double us) {
    if (!(us >= 0 && us < 1e6)) throw std::invalid_argument("breaks: from 0 to below 1,000,000 microseconds");
    return static_cast<long>(us * 1000);
  };
  const long work = to_ns(work_us), brief = to_ns(short_us), lasting = to_ns(long_us);
  short_ns = brief;
  long_ns = lasting;
  work_ns = work;
}

nb::tuple count_breaks() { return nb::make_tuple(count_short.load(), count_long.load()); }

struct Breaks {
  void enter() { timer.start(); }
  void exit(nb::args) { timer.stop(); }
};

}  // namespace
#else
void break_if_due() {}

namespace {

void set_breaks(double, double, double) {}

nb::tuple count_breaks() { return nb::make_tuple(0, 0); }

struct Breaks {
  void enter() {}
  void exit(nb::args) {}
};

}  // namespace
#endif

void bind_breaks(nb::module_& module) {
  module.def("set_breaks", &set_breaks, nb::arg("work_us"), nb::arg("short_us"), nb::arg("long_us"));
  module.def("count_breaks", &count_breaks);
  module.def("break_if_due", &break_if_due, nb::call_guard<nb::gil_scoped_release>());
  nb::class_<Breaks>(module, "Breaks")
      .def(nb::init<>())
      .def("__enter__", &Breaks::enter)
      .def("__exit__", &Breaks::exit);
}

}  // namespace ohdiff::posix
