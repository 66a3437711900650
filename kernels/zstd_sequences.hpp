// Sequences of a zstd block as bits (RFC 8878 section 3.1.1.3.2): what a decoder of zstd reads as literals and matches.
// Codes are those of the predefined tables, or one symbol for all; nothing here finds matches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ohdiff {

struct ZstdSequence {
  std::uint32_t literals;      // bytes before the match
  std::uint32_t match;         // its bytes, at least 3
  std::uint32_t offset_value;  // 1 to 3 repeat an earlier offset, others are an offset plus 3
};

// The three offsets that a frame's sequences may repeat.
class RepeatedOffsets {
 public:
  // The value that stands for an offset after so many literals; remembers the offset as the decoder does.
  std::uint32_t value_of(std::uint32_t offset, std::uint32_t literals);

 private:
  std::uint32_t recent_[3] = {1, 4, 8};
};

// More than a block of 128 KiB can have, if no match is shorter than 5 bytes.
constexpr std::size_t sequence_count_max = 0x7EFF;

// What `write_sequences` may touch at most: it stores whole words.
constexpr std::size_t sequences_size_max(std::size_t count) { return 24 + 12 * count; }

// Writes a sequences section and returns its end. Throws std::invalid_argument when there are too many, or an offset
// has more than 28 bits.
std::uint8_t* write_sequences(const std::vector<ZstdSequence>& sequences, std::uint8_t* out);

}  // namespace ohdiff
