// Finds matches and writes zstd blocks: see delta_frame.hpp and RFC 8878 section 3.1.1.
#include "delta_frame.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "zstd_sequences.hpp"

namespace ohdiff {
namespace {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u32 kBlockSizeMax = 128 << 10;
constexpr u32 kWord = sizeof(u64);
// Delta bytes of source files: 4 0.69 MB, 8 0.75, 16 0.86, 32 1.07; of a database's pages all the same.
constexpr u32 kIndexStep = 4;
constexpr int kIndexLogMin = 8, kIndexLogMax = 17;
// After so many bytes without a match only every second one is looked at, and so on.
constexpr u32 kSkipLog = 7;
constexpr u32 kMatchMin = 3;

u64 load(const u8* from) {
  u64 word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

// The blocks of a frame as they fill up; what no match covers are literals.
class FrameWriter {
 public:
  FrameWriter(std::span<const u8> plain, std::vector<u8>& frame) : plain_(plain), frame_(frame) { write_header(); }
  std::size_t size() const { return frame_.size() + literals_.size(); }
  // The end of the last match.
  u32 done() const { return done_; }

  // [start, start + size), which begins at or after `done`, is what stands `offset` bytes before it.
  void add_match(u32 start, u32 size, u32 offset) {
    while (start >= block_end()) end_block(block_end());
    for (;;) {
      const u32 part = std::min(size, block_end() - start);
      if (part >= kMatchMin) add_sequence(start, part, offset);
      if (part == size) return;
      end_block(block_end());
      // One literal in between: after it the offset can be repeated, which is shorter than naming it.
      if (size - part <= kMatchMin) return;
      start += part + 1;
      size -= part + 1;
    }
  }

  void finish() {
    const u32 end = static_cast<u32>(plain_.size());
    while (end > block_end()) end_block(block_end());
    end_block(end);
    frame_[last_block_] |= 1;
  }

 private:
  struct Match {
    u32 literals, size, offset;
  };

  u32 block_end() const { return block_start_ + kBlockSizeMax; }

  void write_header() {
    // One segment: the window is all of the content, whose size follows in 4 bytes. No checksum, no dictionary.
    const u32 size = static_cast<u32>(plain_.size());
    const u8 header[] = {0x28, 0xB5, 0x2F, 0xFD, 0xA0, static_cast<u8>(size), static_cast<u8>(size >> 8),
                         static_cast<u8>(size >> 16), static_cast<u8>(size >> 24)};
    frame_.assign(std::begin(header), std::end(header));
  }

  void add_literals(u32 end) {
    literals_.insert(literals_.end(), plain_.begin() + done_, plain_.begin() + end);
    done_ = end;
  }

  void add_sequence(u32 start, u32 size, u32 offset) {
    matches_.push_back({start - done_, size, offset});
    add_literals(start);
    done_ += size;
  }

  void end_block(u32 end) {
    add_literals(end);
    last_block_ = frame_.size();
    const auto before = offsets_;
    const std::size_t plain_size = end - block_start_;
    if (write_compressed() >= plain_size) {
      offsets_ = before;  // which a decoder does not touch in a block of plain bytes
      frame_.resize(last_block_ + 3);
      frame_.insert(frame_.end(), plain_.begin() + block_start_, plain_.begin() + end);
      write_block_header(0, plain_size);
    }
    block_start_ = end;
    literals_.clear();
    matches_.clear();
  }

  // How many bytes the block takes after its header.
  std::size_t write_compressed() {
    frame_.resize(last_block_ + 6 + literals_.size() + sequences_size_max(matches_.size()));
    u8* const start = frame_.data() + last_block_ + 3;
    u8* end = write_literals(start);
    sequences_.clear();
    for (const auto& [literals, size, offset] : matches_)
      sequences_.push_back({literals, size, offsets_.value_of(offset, literals)});
    end = write_sequences(sequences_, end);
    const auto size = static_cast<std::size_t>(end - start);
    frame_.resize(last_block_ + 3 + size);
    write_block_header(2, size);
    return size;
  }

  void write_block_header(u32 type, std::size_t size) {
    const u32 header = type << 1 | static_cast<u32>(size) << 3;
    for (unsigned i = 0; i < 3; ++i) frame_[last_block_ + i] = static_cast<u8>(header >> 8 * i);
  }

  // As they are, in the longest form of header.
  u8* write_literals(u8* out) const {
    const u32 size = static_cast<u32>(literals_.size());
    const u32 header = size << 4 | 0x0C;
    for (unsigned i = 0; i < 3; ++i) *out++ = static_cast<u8>(header >> 8 * i);
    return std::copy(literals_.begin(), literals_.end(), out);
  }

  std::span<const u8> plain_;
  std::vector<u8>& frame_;
  std::vector<u8> literals_;
  std::vector<Match> matches_;
  std::vector<ZstdSequence> sequences_;
  RepeatedOffsets offsets_;
  u32 block_start_ = 0;
  u32 done_ = 0;
  std::size_t last_block_ = 0;
};

// Where words of the base stand, every few bytes one; of equal words the last.
class BaseIndex {
 public:
  explicit BaseIndex(std::span<const u8> base) {
    const int words = static_cast<int>(std::bit_width(base.size() / kIndexStep));
    const int log = std::clamp(words, kIndexLogMin, kIndexLogMax);
    shift_ = 64 - log;
    places_.assign(std::size_t{1} << log, 0);
    for (std::size_t at = 0; at + kWord <= base.size(); at += kIndexStep)
      places_[hash(load(base.data() + at))] = static_cast<u32>(at);
  }
  // A place that may have this word, and is one that has a word.
  u32 find(u64 word) const { return places_[hash(word)]; }

 private:
  std::size_t hash(u64 word) const { return static_cast<std::size_t>(word * 0x9E3779B185EBCA87u >> shift_); }
  static thread_local std::vector<u32> places_;
  int shift_;
};
thread_local std::vector<u32> BaseIndex::places_;

u32 equal_ahead(const u8* left, const u8* right, u32 limit) {
  u32 count = 0;
  for (; count + kWord <= limit; count += kWord)
    if (const u64 difference = load(left + count) ^ load(right + count); difference != 0)
      return count + static_cast<u32>(std::countr_zero(difference)) / 8;
  while (count < limit && left[count] == right[count]) ++count;
  return count;
}

u32 equal_behind(const u8* left, const u8* right, u32 limit) {
  u32 count = 0;
  for (; count < limit && *--left == *--right; ++count) {
  }
  return count;
}

class DeltaEncoder {
 public:
  DeltaEncoder(std::span<const u8> plain, std::span<const u8> base, std::vector<u8>& frame)
      : plain_(plain), base_(base), index_(base), writer_(plain, frame) {}

  bool run(std::size_t size_max) {
    const u32 size = static_cast<u32>(plain_.size());
    for (u32 at = 0; base_.size() >= kWord && at + kWord <= size;) {
      const u32 unmatched = at - writer_.done();
      if (writer_.size() + unmatched > size_max) return false;
      if (u32 place; find(at, place)) {
        at = add_match(at, place);
      } else {
        at += 1 + (unmatched >> kSkipLog);
      }
    }
    writer_.finish();
    return writer_.size() <= size_max;
  }

 private:
  // Where in the base a match begins: where the one before would go on, otherwise where the index knows the word.
  bool find(u32 at, u32& place) const {
    const u64 word = load(&plain_[at]);
    // Before the base's first byte it wraps around to beyond its last.
    place = at + shift_;
    if (place <= base_.size() - kWord && load(&base_[place]) == word) return true;
    place = index_.find(word);
    return load(&base_[place]) == word;
  }

  u32 add_match(u32 at, u32 place) {
    const u32 behind = equal_behind(&plain_[at], &base_[place], std::min(at - writer_.done(), place));
    const u32 limit = static_cast<u32>(std::min(plain_.size() - at, base_.size() - place));
    const u32 ahead = equal_ahead(&plain_[at], &base_[place], limit);
    writer_.add_match(at - behind, behind + ahead, static_cast<u32>(base_.size()) - place + at);
    shift_ = place - at;
    return at + ahead;
  }

  std::span<const u8> plain_, base_;
  BaseIndex index_;
  FrameWriter writer_;
  u32 shift_ = 0;  // modulo 2^32
};

}  // namespace

bool encode_delta(std::span<const u8> plain, std::span<const u8> base, std::size_t size_max, std::vector<u8>& frame) {
  if (plain.size() > kDeltaSizeMax || base.size() > kDeltaSizeMax)
    throw std::invalid_argument("plain bytes or base are larger than 128 MiB");
  return DeltaEncoder(plain, base, frame).run(size_max);
}

}  // namespace ohdiff
