// The portable path of rule g32s2/1: the first hash below a threshold, byte by byte, on any architecture.
// It has no block scan: after a cut it jumps over the minimum size, which a block scan can do only in part.
#include <cstdint>

#include "scan.hpp"

namespace ohdiff {

namespace {

// Far enough to cross into the next 4 KiB page early: hardware prefetchers stop at page borders, and waiting there
// for the page walk and the memory halves the rate (1.7 without, 3.3 GB/s with, on data outside the caches).
constexpr std::size_t prefetch_distance = 2048;

constexpr std::size_t row_size = 64;

inline void prefetch(const u8* from) {
#if defined(__GNUC__)
  // As an integer, because the address may lie past the end of the buffer: prefetching never faults.
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(from) + prefetch_distance));
#else
  static_cast<void>(from);
#endif
}

// Both chains in registers, advanced in turns; the caller keeps them aligned to even distances.
struct Chains {
  u32 even;
  u32 odd;
};

// Hashes before `position`, as they stand when the next byte belongs to the even chain.
Chains warm_up(const u8* data, std::size_t position, const RuleTables& tables) {
  Gear gear;
  for (std::size_t i = position - (window_size - 1); i < position; ++i) advance(gear, tables.term[data[i]]);
  return {gear.two_back, gear.one_back};
}

inline u32 pair_term(const u8* at, const RuleTables& tables) {
  return tables.term[at[0]] + tables.rotated_term[at[-1]];
}

// The index of the first hash of a row of 64 bytes below `threshold`, else row_size. Compilers turn one byte into five
// instructions here; the whole row is unrolled so that no index costs more (3.0 against 3.8 GB/s).
inline std::size_t scan_row(const u8* row, const RuleTables& tables, u32 threshold, Chains& chains) {
  u32 even = chains.even;
  u32 odd = chains.odd;
#if defined(__GNUC__)
#pragma GCC unroll 32
#endif
  for (std::size_t i = 0; i < row_size; i += 2) {
    even = 2 * even + pair_term(row + i, tables);
    if (even < threshold) [[unlikely]] return i;
    odd = 2 * odd + pair_term(row + i + 1, tables);
    if (odd < threshold) [[unlikely]] return i + 1;
  }
  chains = {even, odd};
  return row_size;
}

std::size_t find_below_in_tail(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables,
                               u32 threshold, Chains chains) {
  for (std::size_t i = from; i < to; ++i) {
    const u32 hash = 2 * chains.even + pair_term(data + i, tables);
    if (hash < threshold) return i;
    chains = {chains.odd, hash};
  }
  return to;
}

bool is_always_runnable() { return true; }

}  // namespace

std::size_t find_below(const u8* data, std::size_t from, std::size_t to, const RuleTables& tables, u32 threshold) {
  if (from >= to) return to;
  Chains chains = warm_up(data, from, tables);
  for (; from + row_size <= to; from += row_size) {
    prefetch(data + from);
    const std::size_t index = scan_row(data + from, tables, threshold, chains);
    if (index < row_size) return from + index;
  }
  return find_below_in_tail(data, from, to, tables, threshold, chains);
}

constinit const Kernel kernel_scalar = {"scalar", is_always_runnable, nullptr, chunk_features_scalar};

}  // namespace ohdiff
