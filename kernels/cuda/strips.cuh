// Strips of bytes through the rule: a warp takes 32 neighbouring strips at once, one a lane.
// CPU twin: lanes_*.hpp. The warp stages 64 bytes of every strip in shared memory, by loads that use whole sectors, and
// each lane then walks its own row; a first piece, of the 64 bytes before the strip, warms the hash up. Rows are 17
// words long: an odd stride keeps the lanes in different banks. Shared memory: 2176 bytes a warp, and 1 KiB of terms a
// block. Hashes wrap modulo 2^32. Strips may begin or end outside the batch, whose outside reads as zeros: what hashes
// there mean nothing, and the visitor leaves them out by their position.
#pragma once

#include "device.cuh"

namespace ohdiff {

constexpr u32 term_count = 256;
constexpr u32 piece_size = window_size;
constexpr u32 piece_words = piece_size / 4;
constexpr u32 row_words = piece_words + 1;
constexpr u32 rows_words = warp_size * row_words;
constexpr u32 quad_size = 16;
constexpr u32 quads_per_piece = piece_size / quad_size;

// Hashes of the four positions from `offset` on.
struct HashQuad {
  u32 offset;
  u32 hash[4];
};

// All threads of the block; a barrier must follow before terms are used.
__device__ __forceinline__ void load_terms(const u32* terms, u32* shared_terms) {
  for (u32 i = threadIdx.x; i < term_count; i += threads) shared_terms[i] = terms[i];
}

// A quad of some lane's piece: where it lies in the batch, counted from lane 0's piece, and in shared memory.
struct QuadPlace {
  u32 offset;
  u32 word;
};

template <u32 strip>
__device__ __forceinline__ QuadPlace place_of_quad(u32 round) {
  const u32 index = round * warp_size + lane_of_thread();
  const u32 row = index / quads_per_piece;
  const u32 quad = index % quads_per_piece;
  return {row * strip + quad * quad_size, row * row_words + quad * 4};
}

// Stages a piece of every lane, all of which lie inside the batch and on borders of 16 bytes.
template <u32 strip>
__device__ __forceinline__ void stage_whole_pieces(const u8* first, u32* rows) {
  uint4 words[quads_per_piece];
#pragma unroll
  for (u32 i = 0; i < quads_per_piece; ++i) {
    words[i] = *reinterpret_cast<const uint4*>(first + place_of_quad<strip>(i).offset);
  }
#pragma unroll
  for (u32 i = 0; i < quads_per_piece; ++i) {
    u32* to = rows + place_of_quad<strip>(i).word;
    to[0] = words[i].x;
    to[1] = words[i].y;
    to[2] = words[i].z;
    to[3] = words[i].w;
  }
}

// `first`: where lane 0's piece begins; those of the other lanes follow a strip apart.
template <u32 strip>
__device__ __forceinline__ void stage_pieces(const Bytes& bytes, u32 first, u32* rows) {
  constexpr u32 span = (warp_size - 1) * strip + piece_size;
  if (contains(bytes, first, span) && address_of(bytes.data + first) % quad_size == 0) {
    return stage_whole_pieces<strip>(bytes.data + first, rows);
  }
#pragma unroll 1
  for (u32 i = 0; i < quads_per_piece; ++i) {
    const QuadPlace place = place_of_quad<strip>(i);
#pragma unroll 1
    for (u32 k = 0; k < 4; ++k) rows[place.word + k] = word_at(bytes, first + place.offset + 4 * k);
  }
}

__device__ __forceinline__ HashQuad advance_word(Gear& gear, const u32* terms, u32 word, u32 offset) {
  HashQuad quad;
  quad.offset = offset;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) quad.hash[i] = advance(gear, terms[(word >> (8 * i)) & 255]);
  return quad;
}

// Calls visit(HashQuad) for all words of the lane's strip, in order. All lanes of the warp; `rows`: rows_words of the
// warp's own shared memory; `terms` in shared memory; `first`: where lane 0's strip begins, a multiple of 4.
template <u32 strip, class Visit>
__device__ __forceinline__ void visit_strips(const Bytes& bytes, u32 first, const u32* terms, u32* rows, Visit& visit) {
  Gear gear;
  const u32* row = rows + lane_of_thread() * row_words;
  stage_pieces<strip>(bytes, first - piece_size, rows);
  __syncwarp();
#pragma unroll 4
  for (u32 i = 0; i < piece_words; ++i) advance_word(gear, terms, row[i], 0);
  for (u32 done = 0; done < strip; done += piece_size) {
    __syncwarp();
    stage_pieces<strip>(bytes, first + done, rows);
    __syncwarp();
    const u32 start = first + lane_of_thread() * strip + done;
#pragma unroll 4
    for (u32 i = 0; i < piece_words; ++i) visit(advance_word(gear, terms, row[i], start + 4 * i));
  }
  __syncwarp();
}

}  // namespace ohdiff
