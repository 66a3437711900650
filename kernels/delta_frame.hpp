// A zstd frame of bytes that are nearly those of their base: long matches are found by place first, then by a sparse
// index of the base, several times as fast as a compressor that looks for everything. What does not match is left as
// it is, so whoever wants few bytes of dissimilar ones asks a compressor instead. Decoders need the base as prefix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ohdiff {

// Of plain bytes and base each.
constexpr std::size_t kDeltaSizeMax = std::size_t{1} << 27;

// Writes the frame into `frame`, which is cleared first; false, and nothing of use, if it would be larger than
// `size_max`. Throws std::invalid_argument when an input is too large.
bool encode_delta(std::span<const std::uint8_t> plain, std::span<const std::uint8_t> base, std::size_t size_max,
                  std::vector<std::uint8_t>& frame);

}  // namespace ohdiff
