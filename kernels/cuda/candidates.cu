// Candidates of a whole batch, tile by tile, and one sorted list of them. CPU twin: all_candidates() of select.cpp.
// Grid and block: find and list, a block of `threads` for each tile; place, one block of `place_threads`. Memory, on
// the device: data u8[size], any alignment; terms u32[256]; slots Candidate[tiles * slots_per_tile]; counts
// u32[tiles]; first u32[tiles + 1]; list Candidate[list_capacity]; unlisted u32[tiles]; unlisted_count u32[1]; all but
// data aligned to 16. Limits: 1 <= size <= 2^31; list_capacity is no less than what tiles that are not flooded hold.
// Hashes wrap modulo 2^32, counts and offsets never do.
//
// File borders are ignored here: a window that crosses one ends within 63 bytes of a file's start, where no chunk ends.
#include "prefix.cuh"
#include "strips.cuh"

namespace ohdiff {

// Whether a tile has more candidates than slots.
__device__ __forceinline__ bool is_flooded(u32 count) { return count > slots_per_tile; }

__device__ __forceinline__ u32 warp_strips_start() {
  return blockIdx.x * tile_size + warp_of_thread() * warp_size * strip_size;
}

// Calls visit(Candidate) for each candidate of a quad.
template <class Visit>
__device__ __forceinline__ void visit_candidates(const HashQuad& quad, u32 size, u32 threshold, Visit& visit) {
  const u32 lowest = smaller(smaller(quad.hash[0], quad.hash[1]), smaller(quad.hash[2], quad.hash[3]));
  if (lowest >= threshold) return;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const u32 offset = quad.offset + i;
    if (quad.hash[i] < threshold && offset >= window_size - 1 && offset < size) {
      visit(Candidate{offset, quad.hash[i]});
    }
  }
}

template <class Visit>
__device__ __forceinline__ void visit_tile(const Bytes& bytes, const u32* terms, u32 threshold, u32* rows,
                                           Visit& visit) {
  auto visit_quad = [&](const HashQuad& quad) { visit_candidates(quad, bytes.size, threshold, visit); };
  visit_strips<strip_size>(bytes, warp_strips_start(), terms, rows + warp_of_thread() * rows_words, visit_quad);
}

// Copies in order of offset; hits came in any order. `to` in global memory.
__device__ __forceinline__ void write_sorted(const Candidate* hits, u32 count, Candidate* to) {
  for (u32 i = threadIdx.x; i < count; i += threads) {
    u32 rank = 0;
    for (u32 k = 0; k < count; ++k) rank += hits[k].offset < hits[i].offset;
    to[rank] = hits[i];
  }
}

// Lists a tile that has no slots: counts each strip's candidates, then walks once more and writes them in order.
__device__ __forceinline__ void list_flooded(const Bytes& bytes, const u32* terms, u32 threshold, u32* rows, u32* sums,
                                             Candidate* to) {
  u32 count = 0;
  auto count_one = [&](const Candidate&) { ++count; };
  visit_tile(bytes, terms, threshold, rows, count_one);
  u32 next = block_prefix<threads>(count, sums).before;
  auto write_one = [&](const Candidate& candidate) { to[next++] = candidate; };
  visit_tile(bytes, terms, threshold, rows, write_one);
}

// How much of a tile goes into the list.
struct TileRoom {
  u32 listed;
  u32 is_unlisted;
};

__device__ __forceinline__ TileRoom room_of(u32 count, u32 flooded_through, u32 room_for_flooded) {
  if (!is_flooded(count)) return {count, 0};
  if (flooded_through <= room_for_flooded) return {count, 0};
  return {0, 1};
}

__device__ __forceinline__ u32 count_of_unflooded(const u32* counts, u32 tiles, u32* sums) {
  u32 own = 0;
  for (u32 i = threadIdx.x; i < tiles; i += place_threads) own += is_flooded(counts[i]) ? 0 : counts[i];
  return block_prefix<place_threads>(own, sums).total;
}

}  // namespace ohdiff

using namespace ohdiff;

// Every tile's candidates, sorted, and how many it has; slots of a flooded tile are left as they are.
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS)
    ohdiff_find_candidates(const u8* __restrict__ data, u32 size, const u32* __restrict__ terms, u32 threshold_loose,
                           Candidate* __restrict__ slots, u32* __restrict__ counts) {
  __shared__ u32 shared_terms[term_count];
  __shared__ u32 rows[warps * rows_words];
  __shared__ Candidate hits[slots_per_tile];
  __shared__ u32 hit_count;
  load_terms(terms, shared_terms);
  if (threadIdx.x == 0) hit_count = 0;
  __syncthreads();
  auto keep = [&](const Candidate& candidate) {
    const u32 slot = atomicAdd(&hit_count, 1u);
    if (slot < slots_per_tile) hits[slot] = candidate;
  };
  visit_tile({data, size}, shared_terms, threshold_loose, rows, keep);
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = hit_count;
  if (!is_flooded(hit_count)) write_sorted(hits, hit_count, slots + blockIdx.x * slots_per_tile);
}

// Where each tile's candidates go in the list. Flooded tiles get room, in order, as long as all of theirs fit.
extern "C" __global__ void __launch_bounds__(OHDIFF_PLACE_THREADS)
    ohdiff_place_tiles(const u32* __restrict__ counts, u32 tiles, u32 list_capacity, u32* __restrict__ first,
                       u32* __restrict__ unlisted, u32* __restrict__ unlisted_count) {
  __shared__ u32 sums[prefix_words];
  const u32 unflooded = count_of_unflooded(counts, tiles, sums);
  const u32 room_for_flooded = list_capacity > unflooded ? list_capacity - unflooded : 0;
  u32 flooded_before = 0, listed_before = 0, unlisted_before = 0;
  for (u32 base = 0; base < tiles; base += place_threads) {
    const u32 tile = base + threadIdx.x;
    const u32 count = tile < tiles ? counts[tile] : 0;
    const u32 flooded = is_flooded(count) ? count : 0;
    const Prefix all_flooded = block_prefix<place_threads>(flooded, sums);
    const TileRoom room = room_of(count, flooded_before + all_flooded.before + flooded, room_for_flooded);
    const Prefix listed = block_prefix<place_threads>(room.listed, sums);
    const Prefix left_out = block_prefix<place_threads>(room.is_unlisted, sums);
    if (tile < tiles) first[tile] = listed_before + listed.before;
    if (room.is_unlisted) unlisted[unlisted_before + left_out.before] = tile;
    flooded_before += all_flooded.total;
    listed_before += listed.total;
    unlisted_before += left_out.total;
  }
  if (threadIdx.x == 0) {
    first[tiles] = listed_before;
    *unlisted_count = unlisted_before;
  }
}

// Moves slots into the list, and scans flooded tiles that have room there once more.
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS)
    ohdiff_list_candidates(const u8* __restrict__ data, u32 size, const u32* __restrict__ terms, u32 threshold_loose,
                           const Candidate* __restrict__ slots, const u32* __restrict__ counts,
                           const u32* __restrict__ first, Candidate* __restrict__ list) {
  __shared__ u32 shared_terms[term_count];
  __shared__ u32 rows[warps * rows_words];
  __shared__ u32 sums[prefix_words];
  const u32 count = counts[blockIdx.x];
  const u32 start = first[blockIdx.x];
  if (first[blockIdx.x + 1] == start) return;  // empty, or without room
  if (is_flooded(count)) {
    load_terms(terms, shared_terms);
    __syncthreads();
    list_flooded({data, size}, shared_terms, threshold_loose, rows, sums, list + start);
  } else {
    const Candidate* from = slots + blockIdx.x * slots_per_tile;
    for (u32 i = threadIdx.x; i < count; i += threads) list[start + i] = from[i];
  }
}
