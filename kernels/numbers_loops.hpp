// The loops of numbers.hpp, written for compilers to vectorise. Each source that includes this defines
// OHDIFF_NUMBERS_TARGET, the instruction set of its copy; all is internal to that source, so that no linker can take
// one copy for another. The copies differ in speed alone. What one number becomes stands in number_codes.hpp.
//
// Elements pass through tiles that stay in the first-level cache: loaded there whatever their alignment, transformed in
// place, and written as planes, one plane at a time.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#define OHDIFF_NUMBER_FUNCTION OHDIFF_NUMBERS_TARGET inline
#include "number_codes.hpp"
#include "numbers.hpp"

namespace ohdiff {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t tile_size = 4096;  // bytes of elements

template <class Word>
constexpr std::size_t tile_count = tile_size / sizeof(Word);

// The eight bits below the sign: in f32 and bf16 the exponent.
template <class Word>
OHDIFF_NUMBERS_TARGET inline u8 magnitude(Word bits) {
  return static_cast<u8>(static_cast<Word>(bits << 1) >> (bits_of<Word> - 8));
}

// Hardware prefetchers stop at page borders: asking for the next tile meanwhile is 1.4 times as fast on data outside
// the caches. The address may lie beyond the data; a prefetch reads nothing there.
OHDIFF_NUMBERS_TARGET inline void prefetch_after(const u8* from, std::size_t size) {
  const std::uintptr_t next = reinterpret_cast<std::uintptr_t>(from) + tile_size;
  for (std::size_t i = 0; i < size; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(next + i));
}

template <class Word>
OHDIFF_NUMBERS_TARGET inline void load(const u8* from, std::size_t first, std::size_t count, Word* tile) {
  const std::size_t size = count * sizeof(Word);
  prefetch_after(from + first * sizeof(Word), size);
  std::memcpy(tile, from + first * sizeof(Word), size);
}

template <class Word>
OHDIFF_NUMBERS_TARGET inline void load_base(const NumbersJob& job, std::size_t first, std::size_t count, Word* tile) {
  if (job.cast == NumberCast::none) return load(job.base, first, count, tile);
  if constexpr (sizeof(Word) == 2) {
    u32 wide[tile_count<Word>];
    load(job.base, first, count, wide);
    if (job.cast == NumberCast::f32_to_bf16) {
      for (std::size_t i = 0; i < count; ++i) wide[i] = bf16_of_f32(wide[i]);
    } else {
      for (std::size_t i = 0; i < count; ++i) wide[i] = f16_of_f32(wide[i]);
    }
    for (std::size_t i = 0; i < count; ++i) tile[i] = static_cast<Word>(wide[i]);
  }
}

template <class Word, NumberTransform transform>
OHDIFF_NUMBERS_TARGET inline void encode_tile(Word* __restrict values, const Word* __restrict base,
                                              std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = encoded<Word, transform>(values[i], base[i]);
}

template <class Word, NumberTransform transform>
OHDIFF_NUMBERS_TARGET inline void decode_tile(Word* __restrict codes, const Word* __restrict base, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) codes[i] = decoded<Word, transform>(codes[i], base[i]);
}

// `planes`: where the first element's byte goes in the first of planes that are `total` bytes apart.
template <class Word>
OHDIFF_NUMBERS_TARGET inline void write_planes(const Word* __restrict tile, std::size_t count, u8* planes,
                                               std::size_t total) {
  for (std::size_t p = 0; p < sizeof(Word); ++p) {
    u8* __restrict plane = planes + p * total;
    for (std::size_t i = 0; i < count; ++i) plane[i] = static_cast<u8>(tile[i] >> (8 * p));
  }
}

template <class Word>
OHDIFF_NUMBERS_TARGET inline void read_planes(const u8* planes, std::size_t total, std::size_t count,
                                              Word* __restrict tile) {
  const auto at = [planes, total](std::size_t p) { return planes + p * total; };
  if constexpr (sizeof(Word) == 1) {
    std::memcpy(tile, planes, count);
  } else if constexpr (sizeof(Word) == 2) {
    const u8 *b0 = at(0), *b1 = at(1);
    for (std::size_t i = 0; i < count; ++i) tile[i] = static_cast<Word>(b0[i] | b1[i] << 8);
  } else if constexpr (sizeof(Word) == 4) {
    const u8 *b0 = at(0), *b1 = at(1), *b2 = at(2), *b3 = at(3);
    for (std::size_t i = 0; i < count; ++i) {
      tile[i] = Word{b0[i]} | Word{b1[i]} << 8 | Word{b2[i]} << 16 | Word{b3[i]} << 24;
    }
  } else {
    u32 low[tile_count<Word>], high[tile_count<Word>];
    read_planes<u32>(planes, total, count, low);
    read_planes<u32>(at(4), total, count, high);
    for (std::size_t i = 0; i < count; ++i) tile[i] = low[i] | Word{high[i]} << 32;
  }
}

template <class Word, NumberTransform transform>
OHDIFF_NUMBERS_TARGET inline void split_tiles(const NumbersJob& job) {
  Word values[tile_count<Word>], base[tile_count<Word>];
  for (std::size_t first = 0; first < job.count; first += tile_count<Word>) {
    const std::size_t left = job.count - first;
    const std::size_t count = left < tile_count<Word> ? left : tile_count<Word>;
    load(job.from, first, count, values);
    if constexpr (transform != NumberTransform::none) {
      load_base(job, first, count, base);
      encode_tile<Word, transform>(values, base, count);
    }
    write_planes(values, count, job.to + first, job.count);
  }
}

template <class Word, NumberTransform transform>
OHDIFF_NUMBERS_TARGET inline void join_tiles(const NumbersJob& job) {
  Word values[tile_count<Word>], base[tile_count<Word>];
  for (std::size_t first = 0; first < job.count; first += tile_count<Word>) {
    const std::size_t left = job.count - first;
    const std::size_t count = left < tile_count<Word> ? left : tile_count<Word>;
    read_planes(job.from + first, job.count, count, values);
    if constexpr (transform != NumberTransform::none) {
      load_base(job, first, count, base);
      decode_tile<Word, transform>(values, base, count);
    }
    std::memcpy(job.to + first * sizeof(Word), values, count * sizeof(Word));
  }
}

// A place depends on the one before, through memory, when magnitudes repeat, as they do: so a job is walked as several
// runs of elements at once, each with places of its own. Measured on f32: one 1.75, two 2.1, four and eight 2.1 GB/s.
constexpr std::size_t strands = 2;

// Where the next element of each magnitude goes.
struct Places {
  u32 next[strands][256] = {};
};

constexpr std::size_t strand_count(const NumbersJob& job) { return job.count / strands; }

template <class Word>
OHDIFF_NUMBERS_TARGET inline void load_magnitudes(const NumbersJob& job, std::size_t first, std::size_t count,
                                                  Word* base, u8* magnitudes) {
  load_base(job, first, count, base);
  for (std::size_t i = 0; i < count; ++i) magnitudes[i] = magnitude(base[i]);
}

// Calls visit(first, count, strand) for tiles of all strands, `strands` tiles of one size at a time, and in the end for
// the few elements that are left over, which go on where the last strand ends.
template <class Word, class Visit>
OHDIFF_NUMBERS_TARGET inline void visit_strands(const NumbersJob& job, Visit& visit) {
  const std::size_t length = strand_count(job);
  for (std::size_t first = 0; first < length; first += tile_count<Word>) {
    const std::size_t left = length - first;
    visit.tiles(first, length, left < tile_count<Word> ? left : tile_count<Word>);
  }
  if (const std::size_t rest = job.count - strands * length; rest != 0) visit.rest(strands * length, rest);
}

template <class Word>
struct CountMagnitudes {
  const NumbersJob& job;
  Places& places;

  OHDIFF_NUMBERS_TARGET void tiles(std::size_t first, std::size_t length, std::size_t count) {
    Word base[tile_count<Word>];
    u8 magnitudes[strands][tile_count<Word>];
    for (std::size_t s = 0; s < strands; ++s) load_magnitudes(job, first + s * length, count, base, magnitudes[s]);
    u32(*__restrict next)[256] = places.next;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t s = 0; s < strands; ++s) ++next[s][magnitudes[s][i]];
    }
  }

  OHDIFF_NUMBERS_TARGET void rest(std::size_t first, std::size_t count) {
    Word base[tile_count<Word>];
    u8 magnitudes[tile_count<Word>];
    load_magnitudes(job, first, count, base, magnitudes);
    for (std::size_t i = 0; i < count; ++i) ++places.next[strands - 1][magnitudes[i]];
  }
};

template <class Word>
OHDIFF_NUMBERS_TARGET inline Places first_places(const NumbersJob& job) {
  Places places;
  CountMagnitudes<Word> visit{job, places};
  visit_strands<Word>(job, visit);
  u32 place = 0;
  for (std::size_t m = 0; m < 256; ++m) {
    for (std::size_t s = 0; s < strands; ++s) {
      const u32 count = places.next[s][m];
      places.next[s][m] = place;
      place += count;
    }
  }
  return places;
}

template <class Word>
struct Scatter {
  const NumbersJob& job;
  Places& places;
  Word* grouped;

  OHDIFF_NUMBERS_TARGET void encode(std::size_t first, std::size_t count, Word* codes, Word* base, u8* magnitudes) {
    load_magnitudes(job, first, count, base, magnitudes);
    load(job.from, first, count, codes);
    encode_tile<Word, NumberTransform::grouped_float_difference>(codes, base, count);
  }

  OHDIFF_NUMBERS_TARGET void tiles(std::size_t first, std::size_t length, std::size_t count) {
    Word base[tile_count<Word>], codes[strands][tile_count<Word>];
    u8 magnitudes[strands][tile_count<Word>];
    for (std::size_t s = 0; s < strands; ++s) encode(first + s * length, count, codes[s], base, magnitudes[s]);
    Word* __restrict to = grouped;
    u32(*__restrict next)[256] = places.next;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t s = 0; s < strands; ++s) to[next[s][magnitudes[s][i]]++] = codes[s][i];
    }
  }

  OHDIFF_NUMBERS_TARGET void rest(std::size_t first, std::size_t count) {
    Word base[tile_count<Word>], codes[tile_count<Word>];
    u8 magnitudes[tile_count<Word>];
    encode(first, count, codes, base, magnitudes);
    for (std::size_t i = 0; i < count; ++i) grouped[places.next[strands - 1][magnitudes[i]]++] = codes[i];
  }
};

template <class Word>
struct Gather {
  const NumbersJob& job;
  Places& places;
  const Word* grouped;

  OHDIFF_NUMBERS_TARGET void decode(std::size_t first, std::size_t count, Word* codes, const Word* base) {
    decode_tile<Word, NumberTransform::grouped_float_difference>(codes, base, count);
    std::memcpy(job.to + first * sizeof(Word), codes, count * sizeof(Word));
  }

  OHDIFF_NUMBERS_TARGET void tiles(std::size_t first, std::size_t length, std::size_t count) {
    Word base[strands][tile_count<Word>], codes[strands][tile_count<Word>];
    u8 magnitudes[strands][tile_count<Word>];
    for (std::size_t s = 0; s < strands; ++s) load_magnitudes(job, first + s * length, count, base[s], magnitudes[s]);
    const Word* __restrict from = grouped;
    u32(*__restrict next)[256] = places.next;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t s = 0; s < strands; ++s) codes[s][i] = from[next[s][magnitudes[s][i]]++];
    }
    for (std::size_t s = 0; s < strands; ++s) decode(first + s * length, count, codes[s], base[s]);
  }

  OHDIFF_NUMBERS_TARGET void rest(std::size_t first, std::size_t count) {
    Word base[tile_count<Word>], codes[tile_count<Word>];
    u8 magnitudes[tile_count<Word>];
    load_magnitudes(job, first, count, base, magnitudes);
    for (std::size_t i = 0; i < count; ++i) codes[i] = grouped[places.next[strands - 1][magnitudes[i]]++];
    decode(first, count, codes, base);
  }
};

template <class Word>
OHDIFF_NUMBERS_TARGET inline void split_grouped(const NumbersJob& job) {
  Places places = first_places<Word>(job);
  Scatter<Word> visit{job, places, reinterpret_cast<Word*>(job.scratch)};
  visit_strands<Word>(job, visit);
  NumbersJob planes = job;
  planes.from = job.scratch;
  split_tiles<Word, NumberTransform::none>(planes);
}

template <class Word>
OHDIFF_NUMBERS_TARGET inline void join_grouped(const NumbersJob& job) {
  NumbersJob planes = job;
  planes.to = job.scratch;
  join_tiles<Word, NumberTransform::none>(planes);
  Places places = first_places<Word>(job);
  Gather<Word> visit{job, places, reinterpret_cast<const Word*>(job.scratch)};
  visit_strands<Word>(job, visit);
}

template <class Word>
OHDIFF_NUMBERS_TARGET inline void split_words(const NumbersJob& job) {
  switch (job.transform) {
    case NumberTransform::none: return split_tiles<Word, NumberTransform::none>(job);
    case NumberTransform::xor_base: return split_tiles<Word, NumberTransform::xor_base>(job);
    case NumberTransform::float_difference: return split_tiles<Word, NumberTransform::float_difference>(job);
    case NumberTransform::integer_difference: return split_tiles<Word, NumberTransform::integer_difference>(job);
    case NumberTransform::grouped_float_difference: return split_grouped<Word>(job);
  }
}

template <class Word>
OHDIFF_NUMBERS_TARGET inline void join_words(const NumbersJob& job) {
  switch (job.transform) {
    case NumberTransform::none: return join_tiles<Word, NumberTransform::none>(job);
    case NumberTransform::xor_base: return join_tiles<Word, NumberTransform::xor_base>(job);
    case NumberTransform::float_difference: return join_tiles<Word, NumberTransform::float_difference>(job);
    case NumberTransform::integer_difference: return join_tiles<Word, NumberTransform::integer_difference>(job);
    case NumberTransform::grouped_float_difference: return join_grouped<Word>(job);
  }
}

OHDIFF_NUMBERS_TARGET void split(const NumbersJob& job) {
  switch (job.width) {
    case 1: return split_words<u8>(job);
    case 2: return split_words<u16>(job);
    case 4: return split_words<u32>(job);
    case 8: return split_words<u64>(job);
  }
}

OHDIFF_NUMBERS_TARGET void join(const NumbersJob& job) {
  switch (job.width) {
    case 1: return join_words<u8>(job);
    case 2: return join_words<u16>(job);
    case 4: return join_words<u32>(job);
    case 8: return join_words<u64>(job);
  }
}

}  // namespace

}  // namespace ohdiff
