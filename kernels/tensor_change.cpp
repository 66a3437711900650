// Comparing arrays of numbers (tensor_change.hpp). Floats of 8 and 16 bits are made 32-bit floats first, which is
// exact, a block at a time. No branch asks whether an element is finite, since that cannot be predicted in noise; sums
// run in eight lanes, so that compilers make vectors of them, and are added up block by block, so that small terms are
// not lost in a large sum.
#include "tensor_change.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace ohdiff {

TensorChange& TensorChange::operator+=(const TensorChange& other) {
  changed += other.changed;
  not_finite += other.not_finite;
  difference_square_sum += other.difference_square_sum;
  old_square_sum += other.old_square_sum;
  return *this;
}

namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kBlockElements = 1024;

template <class T>
T loaded(const std::uint8_t* from, std::size_t row) {
  T value;
  std::memcpy(&value, from + row * sizeof(T), sizeof(T));
  return value;
}

std::uint64_t mask(bool holds) { return holds ? ~std::uint64_t{0} : 0; }

double masked(double value, std::uint64_t mask) {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) & mask);
}

struct F64 {
  using Bits = std::uint64_t;
  static double value(Bits bits) { return std::bit_cast<double>(bits); }
  static std::uint64_t finite(Bits bits) { return mask((bits << 1) < (std::uint64_t{0x7ff} << 53)); }
};

struct F32 {
  using Bits = std::uint32_t;
  static double value(Bits bits) { return std::bit_cast<float>(bits); }
  static std::uint64_t finite(Bits bits) { return mask((bits & 0x7fffffffu) < 0x7f800000u); }
};

struct BF16 {
  using Bits = std::uint16_t;
  static std::uint32_t as_f32(Bits bits) { return static_cast<std::uint32_t>(bits) << 16; }
};

// Subnormals are made from integers: arithmetic on subnormal floats is a hundred times slower.
struct F16 {
  using Bits = std::uint16_t;
  static std::uint32_t as_f32(Bits bits) {
    const std::uint32_t magnitude = bits & 0x7fffu, sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const float subnormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
    const std::uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00u ? 112u << 23 : 224u << 23);
    return sign | (magnitude < 0x400u ? std::bit_cast<std::uint32_t>(subnormal) : normal);
  }
};

using ByteTable = std::array<float, 256>;

// The kinds of 8 bits that safetensors names. `bias` is the exponent's. With `has_infinity` the largest exponent is no
// number, as in IEEE 754; with `is_fnuz` only minus zero is none; else only what has all bits but the sign set.
ByteTable byte_table(int fraction_bits, int bias, bool has_infinity, bool is_fnuz) {
  ByteTable table;
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = (bits & 0x7f) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    const int whole = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
    const float magnitude = std::ldexp(static_cast<float>(whole), std::max(exponent, 1) - bias - fraction_bits);
    table[bits] = bits & 0x80 ? -magnitude : magnitude;
    const bool is_largest = (bits & 0x7f) >> fraction_bits == 0x7f >> fraction_bits;
    const bool is_special = is_fnuz ? bits == 0x80 : has_infinity ? is_largest : (bits & 0x7f) == 0x7f;
    if (is_special) table[bits] = std::numeric_limits<float>::quiet_NaN();
  }
  return table;
}

const ByteTable e4m3_table = byte_table(3, 7, false, false);
const ByteTable e5m2_table = byte_table(2, 15, true, false);
const ByteTable e4m3fnuz_table = byte_table(3, 8, false, true);
const ByteTable e5m2fnuz_table = byte_table(2, 16, false, true);

// Powers of two without a sign; what has all bits set is no number.
const ByteTable e8m0_table = [] {
  ByteTable table;
  for (int bits = 0; bits < 255; ++bits) table[bits] = std::ldexp(1.0f, bits - 127);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}();

template <const ByteTable& table>
struct F8 {
  using Bits = std::uint8_t;
  static std::uint32_t as_f32(Bits bits) { return std::bit_cast<std::uint32_t>(table[bits]); }
};

double sum(const double (&lanes)[kLanes]) {
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

// All but the count of changed elements.
template <class Kind>
TensorChange sum_block(const std::uint8_t* before, const std::uint8_t* after, std::size_t count) {
  using Bits = typename Kind::Bits;
  double differences[kLanes] = {}, olds[kLanes] = {};
  std::uint64_t finite_masks[kLanes] = {};
  const auto add = [&](std::size_t lane, Bits old_bits, Bits new_bits) {
    const std::uint64_t finite = Kind::finite(old_bits) & Kind::finite(new_bits);
    const double old = masked(Kind::value(old_bits), finite);
    const double difference = masked(Kind::value(new_bits), finite) - old;
    finite_masks[lane] += finite;
    differences[lane] += difference * difference;
    olds[lane] += old * old;
  };
  std::size_t row = 0;
  for (; row + kLanes <= count; row += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      add(lane, loaded<Bits>(before, row + lane), loaded<Bits>(after, row + lane));
  for (; row < count; ++row) add(0, loaded<Bits>(before, row), loaded<Bits>(after, row));
  // A mask of ones is minus one.
  std::uint64_t finite_count = 0;
  for (const std::uint64_t lane : finite_masks) finite_count -= lane;
  return {0, count - finite_count, sum(differences), sum(olds)};
}

// The same of a kind that becomes F32 first.
template <class Kind>
  requires requires { Kind::as_f32(0); }
TensorChange sum_block(const std::uint8_t* before, const std::uint8_t* after, std::size_t count) {
  using Bits = typename Kind::Bits;
  std::uint32_t olds[kBlockElements], news[kBlockElements];
  for (std::size_t row = 0; row < count; ++row) olds[row] = Kind::as_f32(loaded<Bits>(before, row));
  for (std::size_t row = 0; row < count; ++row) news[row] = Kind::as_f32(loaded<Bits>(after, row));
  return sum_block<F32>(reinterpret_cast<std::uint8_t*>(olds), reinterpret_cast<std::uint8_t*>(news), count);
}

template <class Bits>
std::uint64_t count_unequal(const std::uint8_t* before, const std::uint8_t* after, std::size_t count) {
  std::uint64_t unequal = 0;
  for (std::size_t row = 0; row < count; ++row) unequal += loaded<Bits>(before, row) != loaded<Bits>(after, row);
  return unequal;
}

template <class Kind>
TensorChange compare_floats(const std::uint8_t* before, const std::uint8_t* after, std::size_t count) {
  constexpr std::size_t width = sizeof(typename Kind::Bits);
  TensorChange result;
  for (std::size_t start = 0; start < count; start += kBlockElements) {
    const std::size_t size = std::min(kBlockElements, count - start);
    const std::uint8_t *old_block = before + start * width, *new_block = after + start * width;
    result += sum_block<Kind>(old_block, new_block, size);
    result.changed += count_unequal<typename Kind::Bits>(old_block, new_block, size);
  }
  return result;
}

template <class Bits>
TensorChange compare_integers(const std::uint8_t* before, const std::uint8_t* after, std::size_t count) {
  return {count_unequal<Bits>(before, after, count), 0, 0, 0};
}

template <class Kind>
constexpr ElementKind floats(std::string_view name) {
  return {name, sizeof(typename Kind::Bits), &compare_floats<Kind>};
}

template <class Bits>
constexpr ElementKind integers(std::string_view name) {
  return {name, sizeof(Bits), &compare_integers<Bits>};
}

}  // namespace

const std::vector<ElementKind>& element_kinds() {
  static const std::vector<ElementKind> kinds = {
      floats<F64>("f64"),
      floats<F32>("f32"),
      floats<F16>("f16"),
      floats<BF16>("bf16"),
      floats<F8<e4m3_table>>("f8_e4m3"),
      floats<F8<e5m2_table>>("f8_e5m2"),
      floats<F8<e4m3fnuz_table>>("f8_e4m3fnuz"),
      floats<F8<e5m2fnuz_table>>("f8_e5m2fnuz"),
      floats<F8<e8m0_table>>("f8_e8m0"),
      integers<std::uint64_t>("i64"),
      integers<std::uint32_t>("i32"),
      integers<std::uint16_t>("i16"),
      integers<std::uint8_t>("i8"),
  };
  return kinds;
}

const ElementKind* find_element_kind(std::string_view name) {
  for (const ElementKind& kind : element_kinds())
    if (kind.name == name) return &kind;
  return nullptr;
}

}  // namespace ohdiff
