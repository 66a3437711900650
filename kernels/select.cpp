// Cutting a whole segment: candidates come in blocks from a kernel (or byte by byte), selection walks them, and
// positions that cannot end a chunk are not judged where that saves work. Per-ISA code is in scan_*.cpp.
#include <algorithm>

#include "scan.hpp"

namespace ohdiff {

RuleTables make_tables(std::span<const u32, 32> words) {
  RuleTables tables;
  std::copy_n(words.begin(), 16, tables.low_nibble);
  std::copy_n(words.begin() + 16, 16, tables.high_nibble);
  for (u32 byte = 0; byte < 256; ++byte) {
    tables.term[byte] = byte_term(words.data(), byte);
    tables.rotated_term[byte] = rotated_by_16(tables.term[byte]);
  }
  return tables;
}

SegmentCutter::SegmentCutter(const Rule& rule, const Kernel& kernel, const u8* data, std::size_t size, bool is_last)
    : rule_(rule), kernel_(kernel), data_(data), size_(size), is_last_(is_last) {}

std::size_t SegmentCutter::next() {
  const std::size_t available = size_ - start_;
  if (available == 0) return 0;
  const bool reaches_max = available >= rule_.limits.max_size;
  const std::size_t hard_end = reaches_max ? start_ + rule_.limits.max_size : size_;
  const std::size_t cut = find_cut(hard_end);
  if (cut == hard_end && !reaches_max && !is_last_) return 0;
  start_ = cut;
  return cut;
}

std::size_t SegmentCutter::find_cut(std::size_t hard_end) {
  const std::size_t first = start_ + rule_.limits.min_size - 1;  // the first position that can end this chunk
  while (first + 1 < hard_end) {
    const u64 cut = select_cut(list_, list_count_, &list_next_, list_base_, start_, hard_end, rule_.limits);
    if (cut != 0) return cut;
    if (list_next_ < list_count_) break;  // the next candidate lies beyond
    const std::size_t from = std::max(first, scanned_to_);
    if (from + 1 >= hard_end) break;
    if (should_walk_bytewise(from)) return find_cut_bytewise(from, hard_end);
    scan_block(from);
  }
  return hard_end;
}

bool SegmentCutter::should_walk_bytewise(std::size_t from) const {
  return kernel_.scan_block == nullptr || from < dense_until_ || size_ - from < block_scan_size_min;
}

void SegmentCutter::scan_block(std::size_t from) {
  const BlockScan block =
      kernel_.scan_block(data_, from, size_, rule_.tables, rule_.limits.threshold_loose, list_);
  list_base_ = from;
  list_count_ = block.count;
  list_next_ = 0;
  if (block.is_dense) {
    dense_until_ = block.scanned_to;
  } else {
    scanned_to_ = block.scanned_to;
  }
}

std::size_t SegmentCutter::find_cut_bytewise(std::size_t from, std::size_t hard_end) const {
  const CutLimits& limits = rule_.limits;
  const std::size_t last = hard_end - 1;  // a candidate there cuts where the chunk ends anyway
  const std::size_t loose_from = std::min<std::size_t>(start_ + limits.avg_size - 1, last);
  if (from < loose_from) {
    const std::size_t found = find_below(data_, from, loose_from, rule_.tables, limits.threshold_strict);
    if (found < loose_from) return found + 1;
    from = loose_from;
  }
  return find_below(data_, from, last, rule_.tables, limits.threshold_loose) + 1;
}

namespace {

void append_below(const Rule& rule, const u8* data, std::size_t from, std::size_t to, CandidateLists& lists) {
  visit_hashes(data, from, to, rule.tables, [&](std::size_t position, u32 hash) {
    if (hash >= rule.limits.threshold_loose) return;
    lists.positions.push_back(position);
    lists.hashes.push_back(hash);
  });
}

// One block, or the rest when it is too short for one; returns how far it came.
std::size_t append_block(const Rule& rule, const Kernel& kernel, const u8* data, std::size_t from, std::size_t size,
                         CandidateLists& lists) {
  if (size - from < block_scan_size_min) {
    append_below(rule, data, from, size, lists);
    return size;
  }
  Candidate found[block_candidates_max];
  const BlockScan block = kernel.scan_block(data, from, size, rule.tables, rule.limits.threshold_loose, found);
  if (block.is_dense) append_below(rule, data, from, block.scanned_to, lists);
  for (std::size_t i = 0; i < block.count; ++i) {
    lists.positions.push_back(from + found[i].offset);
    lists.hashes.push_back(found[i].hash);
  }
  return block.scanned_to;
}

}  // namespace

CandidateLists all_candidates(const Rule& rule, const Kernel& kernel, const u8* data, std::size_t size) {
  CandidateLists lists;
  if (kernel.scan_block == nullptr) {
    append_below(rule, data, 0, size, lists);
    return lists;
  }
  const std::size_t head = std::min<std::size_t>(size, window_size);
  append_below(rule, data, 0, head, lists);
  for (std::size_t from = head; from < size;) from = append_block(rule, kernel, data, from, size, lists);
  return lists;
}

}  // namespace ohdiff
