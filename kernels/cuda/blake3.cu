// Chunk ids: keyed BLAKE3 (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020, section 2), 32 bytes a chunk.
// CPU twin: hash_chunks() of cpu.py, that is blake3(data, key=key) of the blake3 package.
// Grid and block: place, one block of `place_threads`; leaves, a thread for each leaf, ceil(leaves / threads) blocks;
// trees, a block of `threads` for each chunk. Both grids may be too large. Memory, all of it on the device: data
// u8[size], any alignment; bounds, leaf_first u32[chunks + 1]; chunk_count u32[1]; key u32[8]; nodes u32[8 * leaves];
// ids u32[8 * chunks]; all but data aligned to 16. Limits: size <= 2^31, hence fewer than 2^32 leaves. All additions of
// the compression function wrap modulo 2^32.
#include "prefix.cuh"

namespace ohdiff {

constexpr u32 leaf_size = 1024;
constexpr u32 block_size = 64;
constexpr u32 block_words = 16;
constexpr u32 node_words = 8;

constexpr u32 flag_chunk_start = 1;
constexpr u32 flag_chunk_end = 2;
constexpr u32 flag_parent = 4;
constexpr u32 flag_root = 8;
constexpr u32 flag_keyed = 16;

// A block of a leaf at any alignment lies within 17 aligned words. An odd count keeps lanes in different banks.
constexpr u32 row_words = block_words + 1;
static_assert(row_words % 2 == 1);

struct State {
  u32 word[16];
};

template <u32 count>
__device__ __forceinline__ u32 rotated(u32 value) {
  return (value >> count) | (value << (32 - count));
}

template <u32 a, u32 b, u32 c, u32 d>
__device__ __forceinline__ void mix(State& s, u32 x, u32 y) {
  s.word[a] += s.word[b] + x;
  s.word[d] = rotated<16>(s.word[d] ^ s.word[a]);
  s.word[c] += s.word[d];
  s.word[b] = rotated<12>(s.word[b] ^ s.word[c]);
  s.word[a] += s.word[b] + y;
  s.word[d] = rotated<8>(s.word[d] ^ s.word[a]);
  s.word[c] += s.word[d];
  s.word[b] = rotated<7>(s.word[b] ^ s.word[c]);
}

// Message words in the order of a round, each round permuting that of the one before: all indices are constants, or the
// message would leave the registers.
template <u32 m0, u32 m1, u32 m2, u32 m3, u32 m4, u32 m5, u32 m6, u32 m7, u32 m8, u32 m9, u32 m10, u32 m11, u32 m12,
          u32 m13, u32 m14, u32 m15>
__device__ __forceinline__ void mix_all(State& s, const u32* m) {
  mix<0, 4, 8, 12>(s, m[m0], m[m1]);
  mix<1, 5, 9, 13>(s, m[m2], m[m3]);
  mix<2, 6, 10, 14>(s, m[m4], m[m5]);
  mix<3, 7, 11, 15>(s, m[m6], m[m7]);
  mix<0, 5, 10, 15>(s, m[m8], m[m9]);
  mix<1, 6, 11, 12>(s, m[m10], m[m11]);
  mix<2, 7, 8, 13>(s, m[m12], m[m13]);
  mix<3, 4, 9, 14>(s, m[m14], m[m15]);
}

__device__ __forceinline__ void mix_seven_rounds(State& s, const u32* m) {
  mix_all<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>(s, m);
  mix_all<2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8>(s, m);
  mix_all<3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1>(s, m);
  mix_all<10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6>(s, m);
  mix_all<12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4>(s, m);
  mix_all<9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7>(s, m);
  mix_all<11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13>(s, m);
}

struct Node {
  u32 word[node_words];
};

__device__ __forceinline__ Node load_node(const u32* from) {
  const uint4 low = reinterpret_cast<const uint4*>(from)[0];
  const uint4 high = reinterpret_cast<const uint4*>(from)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ __forceinline__ void store_node(const Node& node, u32* to) {
  const u32* w = node.word;
  reinterpret_cast<uint4*>(to)[0] = make_uint4(w[0], w[1], w[2], w[3]);
  reinterpret_cast<uint4*>(to)[1] = make_uint4(w[4], w[5], w[6], w[7]);
}

// The compression function, its output cut to a chaining value. `counter`: the leaf's number in its chunk, below 2^21.
__device__ __forceinline__ Node compress(const Node& in, const u32* message, u32 counter, u32 size, u32 flags) {
  const u32* h = in.word;
  State s = {{h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], 0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au,
              counter, 0, size, flags}};
  mix_seven_rounds(s, message);
  Node out;
#pragma unroll
  for (u32 i = 0; i < node_words; ++i) out.word[i] = s.word[i] ^ s.word[i + 8];
  return out;
}

struct Leaf {
  u32 offset;  // in the batch
  u32 size;    // 0 only in an empty chunk
  u32 number;  // in its chunk
  bool is_root;
};

__device__ __forceinline__ u32 leaves_of(u32 size) { return size == 0 ? 1 : (size + leaf_size - 1) / leaf_size; }

// The leaf with this number among all; below leaf_first[chunks].
__device__ __forceinline__ Leaf leaf_at(const u32* bounds, const u32* leaf_first, u32 chunks, u32 index) {
  u32 low = 0;
  u32 high = chunks;
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    if (leaf_first[middle] <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const u32 number = index - leaf_first[low];
  const u32 chunk_size = bounds[low + 1] - bounds[low];
  const u32 before = number * leaf_size;
  return {bounds[low] + before, smaller(chunk_size - before, leaf_size), number, chunk_size <= leaf_size};
}

// A warp's leaves, one a row.
struct Rows {
  u32 offset[warp_size];  // of a leaf's first aligned word: up to 3 bytes before the leaf, and before the batch
  u32 words[warp_size * row_words];
};

// Whether all that the warp stages lies in the batch, which is so but at its borders.
__device__ __forceinline__ bool are_inside(const Bytes& bytes, u32 offset) {
  return __ballot_sync(all_lanes, contains(bytes, offset, leaf_size + 4)) == all_lanes;
}

// Stages the aligned words of one block of each leaf, by loads that use whole sectors. What lies beyond a leaf's end is
// some other leaf's, and masked later.
__device__ __forceinline__ void stage_blocks(const Bytes& bytes, u32 block, bool is_inside, Rows& rows) {
  if (is_inside) {
#pragma unroll 4  // 17 loads in flight would spill
    for (u32 index = lane_of_thread(); index < warp_size * row_words; index += warp_size) {
      const u32 from = rows.offset[index / row_words] + block * block_size + index % row_words * 4;
      rows.words[index] = *reinterpret_cast<const u32*>(bytes.data + from);
    }
  } else {
#pragma unroll 1
    for (u32 index = lane_of_thread(); index < warp_size * row_words; index += warp_size) {
      const u32 from = rows.offset[index / row_words] + block * block_size + index % row_words * 4;
      rows.words[index] = word_at(bytes, from);
    }
  }
}

// The message of a block of `size` bytes that begins `shift` bits into the row; beyond its end zeros.
__device__ __forceinline__ void read_message(const u32* row, u32 shift, u32 size, u32* message) {
#pragma unroll
  for (u32 i = 0; i < block_words; ++i) {
    const u64 pair = static_cast<u64>(row[i + 1]) << 32 | row[i];
    message[i] = static_cast<u32>(pair >> shift);
  }
  if (size == block_size) return;
#pragma unroll
  for (u32 i = 0; i < block_words; ++i) {
    const u32 left = size > 4 * i ? size - 4 * i : 0;
    if (left < 4) message[i] &= (1u << (8 * left)) - 1;
  }
}

__device__ __forceinline__ u32 flags_of(u32 block, u32 blocks, bool is_root) {
  u32 flags = flag_keyed;
  if (block == 0) flags |= flag_chunk_start;
  if (block + 1 == blocks) flags |= is_root ? flag_chunk_end | flag_root : flag_chunk_end;
  return flags;
}

// The chaining value of the lane's leaf. All lanes of the warp, also those without a leaf.
__device__ __forceinline__ Node hash_leaf(const Bytes& bytes, const Leaf& leaf, bool has_leaf, const Node& key,
                                          Rows& rows) {
  const u32 misfit = static_cast<u32>(address_of(bytes.data) + leaf.offset) % 4;
  rows.offset[lane_of_thread()] = leaf.offset - misfit;
  const u32 blocks = !has_leaf ? 0 : leaf.size == 0 ? 1 : (leaf.size + block_size - 1) / block_size;
  const u32* row = rows.words + lane_of_thread() * row_words;
  const u32 rounds = largest_of_warp(blocks);
  const bool is_inside = are_inside(bytes, leaf.offset - misfit);
  Node node = key;
  for (u32 block = 0; block < rounds; ++block) {
    __syncwarp();
    stage_blocks(bytes, block, is_inside, rows);
    __syncwarp();
    if (block < blocks) {
      const u32 size = smaller(leaf.size - block * block_size, block_size);
      u32 message[block_words];
      read_message(row, 8 * misfit, size, message);
      node = compress(node, message, leaf.number, size, flags_of(block, blocks, leaf.is_root));
    }
  }
  return node;
}

// The parent of two neighbouring nodes.
__device__ __forceinline__ Node parent_of(const u32* children, const Node& key, bool is_root) {
  u32 message[block_words];
  const Node left = load_node(children);
  const Node right = load_node(children + node_words);
#pragma unroll
  for (u32 i = 0; i < node_words; ++i) {
    message[i] = left.word[i];
    message[i + node_words] = right.word[i];
  }
  return compress(key, message, 0, block_size, flag_keyed | flag_parent | (is_root ? flag_root : 0));
}

// Replaces `count` nodes by their parents, in place; a last one without a neighbour moves up as it is.
__device__ __forceinline__ void merge_level(u32* nodes, u32 count, const Node& key) {
  const u32 pairs = count / 2;
  const u32 parents = (count + 1) / 2;
  for (u32 base = 0; base < parents; base += threads) {
    const u32 i = base + threadIdx.x;
    const u32* children = nodes + static_cast<u64>(2 * node_words) * i;
    Node node;
    if (i < pairs) {
      node = parent_of(children, key, count == 2);
    } else if (i < parents) {
      node = load_node(children);
    }
    __syncthreads();  // the parents of this round overwrite children of the same round
    if (i < parents) store_node(node, nodes + static_cast<u64>(node_words) * i);
  }
  __syncthreads();
}

}  // namespace ohdiff

using namespace ohdiff;

// How many leaves lie before each chunk, and in all; an empty chunk has one.
extern "C" __global__ void __launch_bounds__(OHDIFF_PLACE_THREADS)
    ohdiff_place_leaves(const u32* __restrict__ bounds, const u32* __restrict__ chunk_count,
                        u32* __restrict__ leaf_first) {
  __shared__ u32 sums[prefix_words];
  write_prefix_sums(*chunk_count, [&](u32 chunk) { return leaves_of(bounds[chunk + 1] - bounds[chunk]); }, sums,
                    leaf_first);
}

// The chaining value of every leaf; of a chunk that is one leaf, its id.
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS, 1024 / OHDIFF_THREADS)
    ohdiff_hash_leaves(const u8* __restrict__ data, u32 size, const u32* __restrict__ bounds,
                       const u32* __restrict__ chunk_count, const u32* __restrict__ leaf_first,
                       const u32* __restrict__ key, u32* __restrict__ nodes) {
  __shared__ Rows rows[warps];
  const u32 chunks = *chunk_count;
  const u32 leaves = leaf_first[chunks];
  const u32 index = blockIdx.x * threads + threadIdx.x;
  if (index - lane_of_thread() >= leaves) return;  // the whole warp
  const bool has_leaf = index < leaves;
  const Leaf leaf = has_leaf ? leaf_at(bounds, leaf_first, chunks, index) : Leaf{0, 0, 0, false};
  const Node node = hash_leaf({data, size}, leaf, has_leaf, load_node(key), rows[warp_of_thread()]);
  if (has_leaf) store_node(node, nodes + static_cast<u64>(node_words) * index);
}

// The id of every chunk, from the chaining values of its leaves, which are lost.
extern "C" __global__ void __launch_bounds__(OHDIFF_THREADS)
    ohdiff_hash_trees(const u32* __restrict__ chunk_count, const u32* __restrict__ leaf_first,
                      const u32* __restrict__ key, u32* __restrict__ nodes, u32* __restrict__ ids) {
  const u32 chunk = blockIdx.x;
  if (chunk >= *chunk_count) return;
  const u32 first = leaf_first[chunk];
  u32* own = nodes + static_cast<u64>(node_words) * first;
  const Node key_node = load_node(key);
  for (u32 count = leaf_first[chunk + 1] - first; count > 1; count = (count + 1) / 2) merge_level(own, count, key_node);
  if (threadIdx.x == 0) store_node(load_node(own), ids + static_cast<u64>(node_words) * chunk);
}
