// FSE codes of zstd sequences: see zstd_sequences.hpp. Tables and their use follow RFC 8878 sections 3.1.1.3.2 and 4.1.
#include "zstd_sequences.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <stdexcept>

namespace ohdiff {
namespace {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

static_assert(std::endian::native == std::endian::little, "bits are stored as words lie in memory");

enum Mode : u8 { kPredefined = 0, kOneSymbol = 1 };

// Section 3.1.1.3.2.2: predefined distributions; -1 is a probability below one.
constexpr std::array<signed char, 36> kLiteralsShares = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2,
                                                         2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
constexpr std::array<signed char, 53> kMatchShares = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1,  1,  1,  1,
                                                      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1,  1,  1,
                                                      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
constexpr std::array<signed char, 29> kOffsetShares = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1,
                                                       1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};

// Section 3.1.1.3.2.1: bits that follow the codes of lengths.
constexpr std::array<u8, 36> kLiteralsBits = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  1,  1,
                                              1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
constexpr std::array<u8, 53> kMatchBits = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                           0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1,
                                           2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

// The first length of each code: a code covers as many lengths as its bits can tell apart.
template <std::size_t N>
constexpr std::array<u32, N> first_lengths(const std::array<u8, N>& bits, u32 first) {
  std::array<u32, N> lengths{};
  for (std::size_t code = 0; code < N; ++code) {
    lengths[code] = first;
    first += u32{1} << bits[code];
  }
  return lengths;
}
constexpr auto kLiteralsFirst = first_lengths(kLiteralsBits, 0);
constexpr auto kMatchFirst = first_lengths(kMatchBits, 3);
static_assert(kLiteralsFirst[35] == 65536 && kMatchFirst[52] == 65539);

template <std::size_t N>
u8 code_of(const std::array<u32, N>& first, u32 length) {
  return static_cast<u8>(std::upper_bound(first.begin(), first.end(), length) - first.begin() - 1);
}

// Bits from the lowest on; they are read from the last one back.
class BitWriter {
 public:
  explicit BitWriter(u8* out) : out_(out) {}
  // At most 48 bits between two calls of `flush`.
  void add(u64 value, unsigned bits) {
    pending_ |= (value & ((u64{1} << bits) - 1)) << count_;
    count_ += bits;
  }
  void flush() {
    std::memcpy(out_, &pending_, sizeof pending_);
    out_ += count_ / 8;
    pending_ >>= count_ & ~7u;
    count_ &= 7;
  }
  u8* end() {
    add(1, 1);
    flush();
    return out_ + (count_ > 0);
  }

 private:
  u8* out_;
  u64 pending_ = 0;
  unsigned count_ = 0;
};

// How to go from state to state while symbols are encoded (section 4.1.1, seen from the encoder).
template <std::size_t N, unsigned Log>
class EncodingTable {
 public:
  explicit EncodingTable(const std::array<signed char, N>& shares) {
    constexpr u32 size = 1u << Log;
    std::array<u8, size> symbols{};
    spread(shares, symbols);
    std::array<u32, N> place{};
    u32 total = 0;
    for (std::size_t symbol = 0; symbol < N; ++symbol) {
      const u32 share = shares[symbol] == -1 ? 1 : static_cast<u32>(shares[symbol]);
      const u32 bits = share == 1 ? Log : Log - static_cast<u32>(std::bit_width(share - 1) - 1);
      steps_[symbol] = {(bits << 16) - (share << bits), static_cast<int>(total) - static_cast<int>(share)};
      place[symbol] = total;
      total += share;
    }
    for (u32 at = 0; at < size; ++at) next_[place[symbols[at]]++] = static_cast<std::uint16_t>(size + at);
  }

  u32 first(u8 symbol) const {
    const auto& step = steps_[symbol];
    const u32 bits = (step.bits_and_share + (1u << 15)) >> 16;
    return after(((bits << 16) - step.bits_and_share) >> bits, step);
  }
  u32 encode(u8 symbol, u32 state, BitWriter& bits) const {
    const auto& step = steps_[symbol];
    const u32 count = (state + step.bits_and_share) >> 16;
    bits.add(state, count);
    return after(state >> count, step);
  }
  static constexpr unsigned log = Log;

 private:
  struct Step {
    u32 bits_and_share;
    int find;
  };
  static void spread(const std::array<signed char, N>& shares, std::array<u8, 1u << Log>& symbols) {
    constexpr u32 size = 1u << Log, step = (size >> 1) + (size >> 3) + 3;
    u32 high = size - 1;
    for (std::size_t symbol = 0; symbol < N; ++symbol)
      if (shares[symbol] == -1) symbols[high--] = static_cast<u8>(symbol);
    u32 at = 0;
    for (std::size_t symbol = 0; symbol < N; ++symbol)
      for (int i = 0; i < shares[symbol]; ++i) {
        symbols[at] = static_cast<u8>(symbol);
        do at = (at + step) & (size - 1);
        while (at > high);
      }
  }
  u32 after(u32 place, const Step& step) const {
    return next_[static_cast<std::size_t>(static_cast<int>(place) + step.find)];
  }

  std::array<Step, N> steps_{};
  std::array<std::uint16_t, 1u << Log> next_{};
};

const EncodingTable<36, 6> kLiteralsTable(kLiteralsShares);
const EncodingTable<53, 6> kMatchTable(kMatchShares);
const EncodingTable<29, 5> kOffsetTable(kOffsetShares);

// The codes of one kind, from the last sequence to the first.
template <class Table>
class Coder {
 public:
  Coder(const Table& table, std::span<const u8> codes) : table_(table), codes_(codes) {
    const bool is_one = std::all_of(codes.begin(), codes.end(), [&](u8 code) { return code == codes[0]; });
    mode_ = is_one && codes.size() > 1 ? kOneSymbol : kPredefined;
    if (mode_ == kPredefined) state_ = table.first(codes.back());
  }
  Mode mode() const { return mode_; }
  u8* write_symbol(u8* out) const {
    if (mode_ == kOneSymbol) *out++ = codes_[0];
    return out;
  }
  void encode(std::size_t row, BitWriter& bits) {
    if (mode_ == kPredefined) state_ = table_.encode(codes_[row], state_, bits);
  }
  void end(BitWriter& bits) const {
    if (mode_ == kPredefined) bits.add(state_, Table::log);
  }

 private:
  const Table& table_;
  std::span<const u8> codes_;
  Mode mode_;
  u32 state_ = 0;
};

u8* write_count(std::size_t count, u8* out) {
  if (count >= 128) *out++ = static_cast<u8>(128 + (count >> 8));
  *out++ = static_cast<u8>(count);
  return out;
}

}  // namespace

u32 RepeatedOffsets::value_of(u32 offset, u32 literals) {
  auto& [first, second, third] = recent_;
  // Without literals an offset cannot be the one before, so the values mean the next ones.
  const u32 none = literals == 0;
  if (offset == first && !none) return 1;
  u32 value = offset + 3;
  if (offset == second) {
    value = 2 - none;
  } else {
    if (offset == third) value = 3 - none;
    third = second;
  }
  second = first;
  first = offset;
  return value;
}

u8* write_sequences(const std::vector<ZstdSequence>& sequences, u8* out) {
  const std::size_t count = sequences.size();
  if (count > sequence_count_max) throw std::invalid_argument("a block has too many sequences");
  out = write_count(count, out);
  if (count == 0) return out;
  thread_local std::vector<u8> codes;
  codes.resize(3 * count);
  u8 *literals = codes.data(), *matches = literals + count, *offsets = matches + count;
  for (std::size_t row = 0; row < count; ++row) {
    literals[row] = code_of(kLiteralsFirst, sequences[row].literals);
    matches[row] = code_of(kMatchFirst, sequences[row].match);
    offsets[row] = static_cast<u8>(std::bit_width(sequences[row].offset_value) - 1);
    if (offsets[row] >= kOffsetShares.size()) throw std::invalid_argument("an offset is too large");
  }
  Coder literals_coder(kLiteralsTable, {literals, count});
  Coder offsets_coder(kOffsetTable, {offsets, count});
  Coder matches_coder(kMatchTable, {matches, count});
  *out++ = static_cast<u8>(literals_coder.mode() << 6 | offsets_coder.mode() << 4 | matches_coder.mode() << 2);
  out = matches_coder.write_symbol(offsets_coder.write_symbol(literals_coder.write_symbol(out)));
  BitWriter bits(out);
  for (std::size_t row = count; row-- > 0;) {
    const auto& sequence = sequences[row];
    if (row + 1 < count) {
      offsets_coder.encode(row, bits);
      matches_coder.encode(row, bits);
      literals_coder.encode(row, bits);
      bits.flush();
    }
    bits.add(sequence.literals - kLiteralsFirst[literals[row]], kLiteralsBits[literals[row]]);
    bits.add(sequence.match - kMatchFirst[matches[row]], kMatchBits[matches[row]]);
    bits.flush();
    bits.add(sequence.offset_value, offsets[row]);
    bits.flush();
  }
  matches_coder.end(bits);
  offsets_coder.end(bits);
  literals_coder.end(bits);
  return bits.end();
}

}  // namespace ohdiff
