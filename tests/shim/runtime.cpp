// Fibers and their scheduler: what cuda_shim.h promises to kernels, and launches as the CUDA driver takes them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include "cuda_shim.h"

namespace shim {

namespace {

constexpr std::size_t stack_size = 64 << 10;
constexpr unsigned lanes = 32;

// What a thread waits for.
enum class Wait { nothing, block, warp, end };

#if defined(__x86_64__)

// Callee-saved registers only: ten times as fast as swapcontext, which saves the signal mask by a system call.
extern "C" void ohdiff_shim_switch(void** from, void* to);
asm(R"(.text
.globl ohdiff_shim_switch
.hidden ohdiff_shim_switch
.type ohdiff_shim_switch,@function
ohdiff_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

class Context {
 public:
  void prepare(char* stack, void (*entry)()) {
    auto top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack) + stack_size) & ~std::uintptr_t{15});
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    stack_pointer_ = top;
  }
  static void switch_to(Context& from, Context& to) { ohdiff_shim_switch(&from.stack_pointer_, to.stack_pointer_); }

 private:
  void* stack_pointer_ = nullptr;
};

#else

class Context {
 public:
  void prepare(char* stack, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = stack_size;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  static void switch_to(Context& from, Context& to) { swapcontext(&from.context_, &to.context_); }

 private:
  ucontext_t context_;
};

#endif

struct Thread {
  Context context;
  std::unique_ptr<char[]> stack;
  Wait wait = Wait::nothing;
  Collective collective = Collective::sync;
  std::uint64_t value = 0;
  std::uint64_t result = 0;
  unsigned argument = 0;
};

// A barrier in a source: the name of the file without folders, and the line.
struct Site {
  std::string file;
  int line = 0;
};

struct Kernel {
  void (*call)(void**);
  unsigned block_size;
};

struct Device {
  std::map<std::string, Kernel> kernels;
  std::vector<Thread> threads;
  Thread* current = nullptr;
  Context scheduler;
  void (*call)(void**) = nullptr;
  void** arguments = nullptr;
  std::uint64_t random = 0;
  Site dropped;
};

Device& device() {
  static Device instance;
  return instance;
}

void switch_to_scheduler(Wait wait) {
  Thread* thread = device().current;
  thread->wait = wait;
  Context::switch_to(thread->context, device().scheduler);
}

void run_thread() {
  device().call(device().arguments);
  switch_to_scheduler(Wait::end);
  std::abort();
}

bool is_dropped(const char* path, int line) {
  const Site& site = device().dropped;
  if (site.line != line) return false;
  const char* slash = std::strrchr(path, '/');
  return site.file == (slash ? slash + 1 : path);
}

std::size_t random_below(std::size_t count) {
  std::uint64_t& state = device().random;
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (state >> 33) % count;
}

std::vector<std::size_t> shuffled(std::size_t first, std::size_t count) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = first + i;
  if (device().random == 0) return order;
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random_below(i)]);
  return order;
}

std::uint64_t collected(const Thread* warp, unsigned lane) {
  const Thread& own = warp[lane];
  switch (own.collective) {
    case Collective::sync: return 0;
    case Collective::shuffle: return warp[own.argument % lanes].value;
    case Collective::shuffle_up: return lane >= own.argument ? warp[lane - own.argument].value : own.value;
    case Collective::shuffle_xor: return warp[lane ^ own.argument].value;
    case Collective::ballot: break;
  }
  std::uint64_t bits = 0;
  for (unsigned i = 0; i < lanes; ++i) bits |= static_cast<std::uint64_t>(warp[i].value != 0) << i;
  return bits;
}

// Lets a warp whose lanes all wait for one another go on. False when they wait for different things: on a device that
// is a deadlock, or worse.
bool release_warp(Thread* warp) {
  for (unsigned i = 0; i < lanes; ++i) {
    if (warp[i].wait != Wait::warp || warp[i].collective != warp[0].collective) return false;
  }
  for (unsigned i = 0; i < lanes; ++i) warp[i].result = collected(warp, i);
  for (unsigned i = 0; i < lanes; ++i) warp[i].wait = Wait::nothing;
  return true;
}

// Runs a warp until all its lanes wait for the block or have ended; false on a deadlock.
bool run_warp(std::size_t first) {
  Device& state = device();
  Thread* warp = state.threads.data() + first;
  for (;;) {
    for (const std::size_t i : shuffled(first, lanes)) {
      state.current = &state.threads[i];
      place.thread.x = static_cast<unsigned>(i);
      if (state.current->wait == Wait::nothing) Context::switch_to(state.scheduler, state.current->context);
    }
    const bool waits = std::any_of(warp, warp + lanes, [](const Thread& t) { return t.wait == Wait::warp; });
    if (!waits) return true;
    if (!release_warp(warp)) return false;
  }
}

bool release_block() {
  bool is_any_left = false;
  for (Thread& thread : device().threads) {
    if (thread.wait == Wait::end) continue;
    thread.wait = Wait::nothing;
    is_any_left = true;
  }
  return is_any_left;
}

bool run_block() {
  const std::size_t count = device().threads.size();
  do {
    for (const std::size_t warp : shuffled(0, count / lanes)) {
      if (!run_warp(warp * lanes)) return false;
    }
  } while (release_block());
  return true;
}

// Made by the linker.
extern "C" __attribute__((visibility("hidden"))) unsigned char __start_shim_shared[];
extern "C" __attribute__((visibility("hidden"))) unsigned char __stop_shim_shared[];

// Goes over the sanitizer's red zones as well, which hold nothing.
__attribute__((no_sanitize("address"))) void spoil_shared_memory() {
  for (volatile unsigned char* at = __start_shim_shared; at != __stop_shim_shared; ++at) *at = 0xA5;
}

void prepare_threads(unsigned count) {
  auto& threads = device().threads;
  threads.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    if (!threads[i].stack) threads[i].stack.reset(new char[stack_size]);
    threads[i].context.prepare(threads[i].stack.get(), run_thread);
    threads[i].wait = Wait::nothing;
  }
}

bool run_grid() {
  for (unsigned y = 0; y < place.grid_size.y; ++y) {
    for (const std::size_t x : shuffled(0, place.grid_size.x)) {
      place.block = {static_cast<unsigned>(x), y, 0};
      spoil_shared_memory();
      prepare_threads(place.block_size.x);
      if (!run_block()) return false;
    }
  }
  return true;
}

}  // namespace

Place place;

void register_kernel(const char* name, void (*call)(void**), unsigned block_size) {
  device().kernels[name] = {call, block_size};
}

void sync_block(const char* file, int line) {
  if (!is_dropped(file, line)) switch_to_scheduler(Wait::block);
}

void sync_warp(const char* file, int line) {
  if (!is_dropped(file, line)) collect(Collective::sync, 0, 0);
}

std::uint64_t collect(Collective collective, std::uint64_t value, unsigned argument) {
  Thread* thread = device().current;
  thread->collective = collective;
  thread->value = value;
  thread->argument = argument;
  switch_to_scheduler(Wait::warp);
  return thread->result;
}

}  // namespace shim

// As cuLaunchKernel takes them: a pointer to each argument. Returns 0; 1 for an unknown kernel, 2 for a block that the
// kernel was not compiled for, 3 for a deadlock. Seed 0 keeps everything in order. One launch at a time.
extern "C" int ohdiff_shim_launch(const char* name, unsigned grid_x, unsigned grid_y, unsigned block_x,
                                  std::uint64_t seed, void** arguments) {
  shim::Device& state = shim::device();
  const auto found = state.kernels.find(name);
  if (found == state.kernels.end()) return 1;
  if (found->second.block_size != block_x) return 2;
  state.call = found->second.call;
  state.arguments = arguments;
  state.random = seed;
  shim::place.grid_size = {grid_x, grid_y, 1};
  shim::place.block_size = {block_x, 1, 1};
  return shim::run_grid() ? 0 : 3;
}

// Leaves out the barrier at this line of this file from now on; line 0 for none.
extern "C" void ohdiff_shim_drop_barrier(const char* file, int line) { shim::device().dropped = {file, line}; }
