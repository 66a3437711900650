// How far two arrays of numbers lie apart: how many elements differ, and the sums of squares that a relative change is
// made of. Elements are little-endian, of any alignment. All pointers are host memory owned by the caller and are only
// read. Nothing here allocates or knows Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace ohdiff {

struct TensorChange {
  std::uint64_t changed = 0;     // pairs whose bytes differ
  std::uint64_t not_finite = 0;  // pairs with an infinity or a NaN: they are in no sum
  double difference_square_sum = 0;
  double old_square_sum = 0;

  TensorChange& operator+=(const TensorChange& other);
};

using TensorChangeKernel = TensorChange (*)(const std::uint8_t* before, const std::uint8_t* after, std::size_t count);

struct ElementKind {
  std::string_view name;
  std::size_t width;
  TensorChangeKernel compare;
};

// Every kind that can be compared; integers and bytes have no sums.
const std::vector<ElementKind>& element_kinds();

// Null when there is no such kind.
const ElementKind* find_element_kind(std::string_view name);

}  // namespace ohdiff
